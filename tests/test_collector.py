"""Python's collector of cycles and the millions of objects that users are made of."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from mtserve_backend import collector
from mtserve_backend.collector import Collector


@pytest.fixture(autouse=True)
def thaw() -> Iterator[None]:
    yield
    gc.unfreeze()


def walked_over(thing: object) -> bool:
    return any(other is thing for other in gc.get_objects())


def test_what_lives_is_taken_out_of_the_collectors_sight() -> None:
    user = {"log": [1, 2, 3]}
    assert walked_over(user)
    Collector().between_batches()
    assert not walked_over(user)


def test_garbage_is_collected_and_not_frozen() -> None:
    class Node:
        pass

    node = Node()
    node.__dict__["itself"] = node
    died: list[str] = []
    watch = weakref.ref(node, lambda _: died.append("collected"))
    del node
    Collector().between_batches()
    assert died == ["collected"]
    assert watch() is None


def test_not_at_every_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(collector.time, "monotonic", lambda: now[0])
    often = Collector()
    often.between_batches()
    young = [[]]  # type: ignore[var-annotated]
    often.between_batches()
    assert walked_over(young)
    now[0] += collector.FREEZE_EVERY_S
    often.between_batches()
    assert not walked_over(young)
