"""Token logs, and requests compared with them, against the protocol's words taken literally."""

from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtserve_backend.cache.digest import digest
from mtserve_backend.cache.history import HistoryGap, TokenLog, Tokens, compare
from tests.cache.shadow import Agreement, Gap, Known, Token, expected_comparison, known_of, tokens_of, told_before

# Few different tokens, so that histories agree by chance now and then; an item and an action may differ alone.
token = st.tuples(st.integers(0, 1), st.integers(0, 1))
history = st.lists(token, max_size=12)


def log_of(known: Known | None) -> TokenLog | None:
    if known is None:
        return None
    log = TokenLog(known.start)
    log.rewrite(known.start, known.start, tokens_of(known.start, known.tokens))
    return log


@st.composite
def knowledge(draw: st.DrawFn) -> Known | None:
    return draw(st.none() | st.builds(Known, st.integers(0, 6), history.map(tuple)))


@st.composite
def requests(draw: st.DrawFn, known: Known | None) -> tuple[int, list[Token]]:
    """Mostly a part of what is known, perhaps changed somewhere, and something after it."""
    start = draw(st.integers(0, 14))
    sent: list[Token] = []
    if known is not None and known.start <= start <= known.stop and draw(st.booleans()):
        kept = list(known.tokens[start - known.start :])
        sent = kept[: draw(st.integers(0, len(kept)))]
        if sent and draw(st.booleans()):
            sent[draw(st.integers(0, len(sent) - 1))] = draw(token)
    return start, sent + draw(st.lists(token, max_size=6))


@given(st.data())
def test_comparison_is_what_the_protocol_says(data: st.DataObject) -> None:
    known = data.draw(knowledge())
    start, sent = data.draw(requests(known))
    base = data.draw(st.integers(0, start + len(sent)))
    expected = expected_comparison(known, start, sent, base)
    tokens, log = tokens_of(start, sent), log_of(known)
    if isinstance(expected, Gap):
        with pytest.raises(HistoryGap) as gap:
            compare(log, tokens, base)
        assert gap.value.needed_from == expected.needed_from
        assert f"tokens are needed from position {expected.needed_from}" in str(gap.value)
        return
    comparison = compare(log, tokens, base)
    assert (comparison.base, comparison.agreed, comparison.total) == (base, expected.agreed, tokens.stop)
    log = log or TokenLog(base)
    log.rewrite(comparison.base, comparison.agreed, tokens)
    assert known_of(log) == Known(base, expected.history)


@given(st.data())
def test_a_gap_is_closed_by_sending_from_where_it_says(data: st.DataObject) -> None:
    known = data.draw(knowledge())
    start, sent = data.draw(requests(known))
    base = data.draw(st.integers(0, start + len(sent)))
    expected = expected_comparison(known, start, sent, base)
    if not isinstance(expected, Gap):
        return
    filled = [*data.draw(st.lists(token, min_size=start, max_size=start))[expected.needed_from :], *sent]
    compare(log_of(known), tokens_of(expected.needed_from, filled), base)


def test_the_model_of_the_protocol_on_cases_worked_by_hand() -> None:
    a, b, c = (0, 0), (1, 0), (0, 1)
    known = Known(0, (a, b, c))
    assert expected_comparison(known, 3, [a], 0) == Agreement(0, 3, (a, b, c, a))
    assert expected_comparison(known, 1, [b, a], 0) == Agreement(0, 2, (a, b, a))
    assert expected_comparison(known, 4, [a], 0) == Gap(3)
    assert expected_comparison(None, 1, [a], 0) == Gap(0)
    assert expected_comparison(known, 0, [a], 0) == Agreement(0, 1, (a,))
    assert expected_comparison(Known(4, (a,)), 5, [b], 2) == Gap(2)
    assert expected_comparison(known, 5, [a], 6) == Agreement(6, 6, ())
    assert expected_comparison(known, 5, [a, b], 6) == Agreement(6, 6, (b,))
    assert expected_comparison(known, 5, [a, b], 4) == Gap(4)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40), st.lists(token, max_size=20)), max_size=12))
def test_a_log_rewritten_many_times_holds_what_a_list_would(steps: list[tuple[int, int, list[Token]]]) -> None:
    """Growing in place, cut, moved with the window: capacity left over from before never shows."""
    log, model = TokenLog(), Known(0, ())
    for moved, kept, fresh in steps:
        base = min(model.start + moved, model.stop)
        agreed = min(base + kept, model.stop)
        log.rewrite(base, agreed, tokens_of(agreed, fresh))
        model = Known(base, model.tokens[base - model.start : agreed - model.start] + tuple(fresh))
        assert known_of(log) == model
        assert (len(log), log.stop) == (len(model.tokens), model.stop)


def test_the_log_does_not_keep_the_requests_memory() -> None:
    """A request's tensors die with `execute`."""
    sent = tokens_of(0, [(1, 1), (0, 0)])
    log = TokenLog()
    log.rewrite(0, 0, sent)
    sent.items[:], sent.actions[:] = 9, 9
    assert known_of(log).tokens == ((1, 1), (0, 0))


def test_appending_copies_a_long_history_rarely() -> None:
    log = TokenLog()
    log.rewrite(0, 0, tokens_of(0, [(1, 0)] * 4000))
    buffers = set()
    for position in range(4000, 4400):
        log.rewrite(0, position, tokens_of(position, [(0, 1)]))
        buffers.add(log.tokens(0, 1).items.__array_interface__["data"][0])
    assert len(buffers) <= 2
    assert len(log) == 4400


def test_a_difference_in_one_action_alone_counts() -> None:
    log = TokenLog()
    log.rewrite(0, 0, tokens_of(0, [(1, 0), (2, 0), (3, 0)]))
    assert compare(log, tokens_of(0, [(1, 0), (2, 1), (3, 0)]), 0).agreed == 1
    assert np.array_equal(log.tokens(0, 3).actions, [0, 0, 0])


class Writers:
    """Two who state one user's history, each their own, and a server's log, beside what the protocol says of it."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.histories: list[list[Token]] = [[], []]
        self.known: Known | None = None
        self.before: list[Token] | None = None
        self.log: TokenLog | None = None
        self.seen: Counter[str] = Counter()

    def live(self) -> None:
        """One writer's history becomes another, mostly a longer one."""
        rng, writer = self.random, self.random.randrange(2)
        history = list(self.histories[rng.choice((writer, writer, writer, 1 - writer))])
        if rng.random() < 0.3:
            del history[rng.randrange(len(history) + 1) :]
        if rng.random() < 0.2 and history:
            at = rng.randrange(len(history))
            history[at] = (history[at][0] + 1, history[at][1])
        history += [(rng.randrange(2), rng.randrange(2)) for _ in range(rng.randrange(6))]
        self.histories[writer] = history
        start = max(0, len(history) - rng.randrange(12)) if rng.random() < 0.8 else 0
        base = rng.choice((0, 0, 0, len(history) // 3, len(history) // 2))
        self.state(history, start, base, with_digest=rng.random() < 0.85)

    def state(self, history: list[Token], start: int, base: int, with_digest: bool) -> None:
        for resends in range(3):
            sent, stated = history[start:], history[:start] if with_digest else None
            expected = expected_comparison(self.known, start, sent, base, self.before, stated)
            tokens = tokens_of(start, sent, stated)
            if not isinstance(expected, Gap):
                self.seen["accepted" if start <= base else "accepted by its digest" if stated else "trusted"] += 1
                self.accept(expected, tokens, start, sent, stated)
                return
            self.seen["refused by its digest" if expected.other else "gap"] += 1
            with pytest.raises(HistoryGap) as gap:
                compare(self.log, tokens, base)
            assert gap.value.needed_from == expected.needed_from
            assert ("another history" in str(gap.value)) == expected.other
            # A server that lacks some of it may ask once more, when it has seen that the rest is not the same either.
            assert resends < 2, "sent from where it was said, and asked again"
            start = expected.needed_from

    def accept(
        self, expected: Agreement, tokens: Tokens, start: int, sent: list[Token], stated: list[Token] | None
    ) -> None:
        comparison = compare(self.log, tokens, expected.base)
        assert comparison.agreed == expected.agreed
        self.before = told_before(self.known, self.before, start, sent, expected.base, stated)
        self.log = self.log or TokenLog(expected.base)
        self.log.rewrite(comparison.base, comparison.agreed, tokens)
        self.known = Known(expected.base, expected.history)
        assert known_of(self.log) == self.known


def test_a_digest_tells_another_beginning_from_the_same() -> None:
    """Histories that are cut, changed and taken over, windows that move to and fro: nothing but the same beginning is
    taken for it, and where it is not, sending from where the server says is enough.
    """
    seen: Counter[str] = Counter()
    for seed in range(400):
        writers = Writers(seed)
        for _ in range(25):
            writers.live()
        seen += writers.seen
    assert len(seen) == 5
    assert min(seen.values()) > 100, seen


def test_digests_of_neighbours_add_up_and_every_part_of_a_token_counts() -> None:
    rng = np.random.default_rng(1)
    items, actions = rng.integers(-(2**63), 2**63 - 1, 50), rng.integers(0, 2**31 - 1, 50, dtype=np.int32)
    whole = digest(7, items, actions)
    assert whole == (digest(7, items[:20], actions[:20]) + digest(27, items[20:], actions[20:])) % 2**64
    assert digest(7, items[:0], actions[:0]) == 0
    assert digest(8, items, actions) != whole
    for changed in (items, actions):
        changed[33] ^= 1
        assert digest(7, items, actions) != whole
        changed[33] ^= 1
    items[[3, 4]] = items[[4, 3]]
    assert digest(7, items, actions) != whole


def test_the_digest_is_the_one_that_clients_know() -> None:
    """Of docs/protocol.md. Who changes this number cuts off every client."""
    assert f"{digest(0, np.array([5, 6]), np.array([1, 0], dtype=np.int32)):016x}" == "155bc036e07511d7"
