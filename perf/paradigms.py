"""`python -m perf.paradigms`: recompute, device-only and hierarchical side by side, through real Triton and gRPC.

Two measurements. One user after the other with histories of one length: found on the device, found on the host, or
recomputed. And batches (the paper's Table 1) of users with histories as long as the KuaiRand-like trace's, who come
back in random order to a device that has memory for a share of them (0.6: the paper's device hits are about 64 %);
every batch is put to each paradigm in turn.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from statistics import mean, median

from tqdm import tqdm

from perf.lab import paper
from perf.lab.command import Findings, run
from perf.lab.in_turn import trace_in_turn
from perf.lab.population import Population
from perf.lab.presets import Preset
from perf.lab.result import Table, figure
from perf.lab.servers import knobs, serving
from perf.stats import ratio

MODES = ("recompute", "device", "hierarchical")
CORE = "8 encode"
# What the product aims at with the preset `cpu`.
DEVICE_HIT_AIM, HOST_HIT_AIM, BATCH_AIM, OVER_DEVICE_AIM, HITS_AIM = 30.0, 20.0, 20.0, 5.0, 99.5
AROUND_SHARE_AIM, AROUND_MS_AIM = 15.0, 3.0


def measure(preset: Preset, seed: int, findings: Findings) -> None:
    one_at_a_time(preset, seed, findings)
    batches(preset, seed, findings)


def one_at_a_time(preset: Preset, seed: int, findings: Findings) -> None:
    """Two users take turns on a device that holds one: whoever comes is on the host, and then on the device."""
    room = preset.history + preset.new * (3 * preset.rounds + 6)
    people = Population(preset, [preset.history] * 2, preset.new, preset.candidates, seed)
    cached = knobs(preset, room + 2 * preset.page_tokens, 2 * (room + preset.chunk_tokens), room)
    seconds: dict[str, list[float]] = {"recompute": [], "host": [], "device": []}
    with serving(preset, {mode: {**cached, "cache_mode": mode} for mode in ("recompute", "hierarchical")}) as served:
        hierarchical, recompute = served["hierarchical"], served["recompute"]
        for visit in people.first:
            hierarchical.ask(visit)
        around: list[float] = []
        for number in tqdm(range(preset.rounds + 1), desc="one at a time", file=sys.stderr):
            user = people.users[number % 2]
            measured = {"host": hierarchical.ask(people.visit(user)).seconds}
            before = hierarchical.step_seconds()
            hits = [hierarchical.ask(people.visit(user)) for _ in range(2)]
            taken = _difference(hierarchical.step_seconds(), before)
            measured["device"] = median(answer.seconds for answer in hits)
            if any(answer.tokens[0] == 0 or answer.tokens[1] or answer.tokens[2] for answer in hits):
                raise RuntimeError(f"not found on the device: {[answer.tokens for answer in hits]}")
            measured["recompute"] = recompute.ask(people.visit(user)).seconds
            if number:
                for name, value in measured.items():
                    seconds[name].append(value)
                around.append(mean(answer.seconds for answer in hits) - taken[CORE] / len(hits))
    _report_one(preset, seconds, around, findings)


def _report_one(preset: Preset, seconds: dict[str, list[float]], around: list[float], findings: Findings) -> None:
    ms = {name: [1e3 * value for value in values] for name, values in seconds.items()}
    aims = preset.name == "cpu"
    speedups = {
        where: [ratio(r, c) for r, c in zip(seconds["recompute"], seconds[where], strict=True)]
        for where in ("device", "host")
    }
    findings.figures += [figure(f"batch 1, {name}", values, "ms") for name, values in ms.items()]
    findings.figures += [
        figure("device hit over recompute", speedups["device"], "x", "higher", aim=DEVICE_HIT_AIM if aims else None),
        figure("host hit over recompute", speedups["host"], "x", "higher", aim=HOST_HIT_AIM if aims else None),
        figure("around the core of a device hit", [1e3 * s for s in around], "ms", aim=AROUND_MS_AIM if aims else None),
        figure(
            "around the core, of a device hit's latency",
            [100 * ratio(a, d) for a, d in zip(around, seconds["device"], strict=True)],
            "%", aim=AROUND_SHARE_AIM if aims else None,
        ),
    ]  # fmt: skip
    rows = [
        [
            name,
            f"{median(values):,.1f}",
            f"{min(values):,.1f} .. {max(values):,.1f}",
            f"{median(ms['recompute']) / median(values):.1f}x",
        ]
        for name, values in ms.items()
    ]
    title = (
        f"One request at a time, history {preset.history:,}, {preset.new} new events, {preset.candidates} candidates"
    )
    findings.tables.append(Table(title, ["found", "ms", "spread", "speed-up"], rows))


def batches(preset: Preset, seed: int, findings: Findings) -> None:
    """The paper's Table 1."""
    with trace_in_turn(preset, {mode: {"cache_mode": mode} for mode in MODES}, seed) as trace:
        for size in preset.batches:
            taken = trace.put(size, max(2, preset.visits // size))
            _report_batches(
                preset, size, {mode: own.seconds for mode, own in taken.items()},
                {mode: own.tokens for mode, own in taken.items()}, findings,
            )  # fmt: skip


def _report_batches(
    preset: Preset, size: int, seconds: dict[str, list[float]], tokens: dict[str, list[int]], findings: Findings
) -> None:
    means = {mode: 1e3 * mean(values) for mode, values in seconds.items()}
    hits = {mode: (100 * ratio(t[0], sum(t)), 100 * ratio(t[0] + t[1], sum(t))) for mode, t in tokens.items()}
    aims = preset.name == "cpu" and size == 8
    for mode in MODES:
        values = [1e3 * value for value in seconds[mode]]
        findings.figures.append(
            figure(f"batch {size}, {mode}", values, "ms", plot="latency by batch", series=mode, x=size)
        )
    over_recompute, over_device = means["recompute"] / means["hierarchical"], means["device"] / means["hierarchical"]
    findings.figures += [
        figure(f"batch {size}, mean over recompute", [over_recompute], "x", "higher", aim=BATCH_AIM if aims else None),
        figure(f"batch {size}, mean over device", [over_device], "x", "higher", aim=OVER_DEVICE_AIM if aims else None),
        figure(
            f"batch {size}, total hits", [hits["hierarchical"][1]], "%", "higher", aim=HITS_AIM if aims else None,
            plot="total hits by batch", series="hierarchical", x=size,
        ),
    ]  # fmt: skip
    rows = [
        [
            mode,
            f"{means[mode]:,.1f}",
            f"{means['recompute'] / means[mode]:.2f}x",
            f"{hits[mode][0]:.2f}%",
            f"{hits[mode][1]:.2f}%",
        ]
        for mode in MODES
    ]
    findings.tables.append(
        Table(
            f"Batches of {size} (Table 1), histories of the KuaiRand-like trace, device memory for "
            f"{preset.device_share:.0%} of the tokens",
            ["paradigm", "mean ms", "speed-up", "device hits", "total hits"],
            rows,
            _paper_rows(size),
        )
    )


def _paper_rows(size: int) -> list[list[str]]:
    if size not in paper.TABLE_1:
        return []
    recomputed = paper.TABLE_1[size]["recompute"][0]
    return [
        [mode, f"{ms:,.1f}", f"{recomputed / ms:.2f}x", _percent(device), _percent(total)]
        for mode, (ms, device, total) in paper.TABLE_1[size].items()
    ]


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}%"


def _difference(after: dict[str, float], before: dict[str, float]) -> dict[str, float]:
    return {step: value - before.get(step, 0.0) for step, value in after.items()}


def main(argv: Sequence[str] | None = None) -> int:
    return run("paradigms", __doc__, measure, argv)


if __name__ == "__main__":
    sys.exit(main())
