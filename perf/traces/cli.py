"""`python -m perf.traces`: make traces and look at them.

Exit codes: 0; 2 for what the user can put right; 130 for Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import Any

from perf import fetch
from perf.datasets import DatasetError
from perf.environment import environment
from perf.traces import make
from perf.traces.arguments import parser
from perf.traces.cut import Rules
from perf.traces.make import Made
from perf.traces.metadata import Metadata, TraceError, finite
from perf.traces.published import Comparison, Published, compare, table
from perf.traces.reader import Trace
from perf.traces.shapes import SHAPES


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    commands = {"kuairand": _kuairand, "movielens": _movielens, "show": _show}
    try:
        commands.get(arguments.what, _generate)(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever reads has seen enough (`show | head`); Python must not try again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (TraceError, DatasetError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; nothing was written", file=sys.stderr)
        return 130
    return 0


def _generate(arguments: argparse.Namespace) -> None:
    shape, published = SHAPES[arguments.what]
    shape = shape.scaled(arguments.scale)
    changed = {
        name: value for name in ("items", "popularity", "days") if (value := getattr(arguments, name)) is not None
    }
    shape = replace(shape, **changed)
    begin = time.perf_counter()
    made = make.generated(
        arguments.out, arguments.what, shape, arguments.seed, arguments.candidates, overwrite=arguments.force
    )
    _report(made, time.perf_counter() - begin, arguments.json, published, arguments.scale)


def _kuairand(arguments: argparse.Namespace) -> None:
    begin = time.perf_counter()
    made = make.from_kuairand(
        arguments.out,
        arguments.paths,
        _rules(arguments),
        rows_in_memory=arguments.rows_in_memory,
        overwrite=arguments.force,
    )
    published = SHAPES["kuairand-1k"][1] if arguments.compare_1k else None
    _report(made, time.perf_counter() - begin, arguments.json, published)


def _movielens(arguments: argparse.Namespace) -> None:
    path = fetch.ml_100k() if arguments.path == "ml-100k" else Path(arguments.path)
    begin = time.perf_counter()
    made = make.from_movielens(arguments.out, path, _rules(arguments), overwrite=arguments.force)
    _report(made, time.perf_counter() - begin, arguments.json)


def _rules(arguments: argparse.Namespace) -> Rules:
    return Rules(round(arguments.interval * 1000), arguments.longest_history, arguments.largest_request)


def _report(
    made: Made, seconds: float, json_file: Path | None, published: Published | None = None, scale: float = 1.0
) -> None:
    rows = compare(made.metadata.statistics, published, scale)
    _describe(made.path, made.metadata, rows)
    print(f"{made.bad_rows}; {made.beyond_longest:,} events beyond the longest history left out; {seconds:.1f} s")
    bad = {"rows": len(made.bad_rows), "reasons": dict(made.bad_rows.counts), "examples": made.bad_rows.examples}
    more = {"bad_rows": bad, "beyond_longest": made.beyond_longest, "seconds": seconds, "scale": scale}
    _write_json(json_file, made.path, made.metadata, rows, more)


def _show(arguments: argparse.Namespace) -> None:
    with Trace(arguments.trace) as trace:
        statistics = trace.check() if arguments.check else trace.metadata.statistics
        rows = compare(statistics, None)
        _describe(arguments.trace, trace.metadata, rows)
        if arguments.check:
            print("checked: every request, offset, time and history")
        for number, arrival in enumerate(islice(trace.arrivals(), arguments.head)):
            print(
                f"request {number}: {arrival.time:.3f} s, user {arrival.user}, history {arrival.history_length}, new: "
                f"items {arrival.items.tolist()}, actions {arrival.actions.tolist()}, "
                f"timestamps {arrival.timestamps.tolist()}, candidates {arrival.candidates.tolist()}"
            )
        _write_json(arguments.json, arguments.trace, trace.metadata, rows, {"checked": arguments.check})


def _describe(path: Path, metadata: Metadata, rows: list[Comparison]) -> None:
    source = metadata.source
    seed = "" if source.seed is None else f", seed {source.seed}"
    interval = "" if source.interval_s is None else f", intervals of {source.interval_s:g} s"
    print(f"{path}: {source.name}{seed}{interval}; {path.stat().st_size / 1e6:,.1f} MB, {len(metadata.blocks)} blocks")
    print(
        f"{metadata.events:,} events and {metadata.candidates:,} candidates over {metadata.seconds / 86_400:.1f} days; "
        f"item IDs below {metadata.items:,}, actions below {metadata.actions}"
    )
    for line in table(rows):
        print(line)


def _write_json(
    file: Path | None, path: Path, metadata: Metadata, rows: list[Comparison], more: dict[str, Any]
) -> None:
    if file is None:
        return
    report = {
        "trace": str(path),
        "bytes": path.stat().st_size,
        "source": asdict(metadata.source),
        **{name: getattr(metadata, name) for name in ("requests", "events", "candidates", "items", "actions")},
        "statistics": finite({row.name: row.value for row in rows}),
        "published": {row.name: row.published for row in rows if row.published is not None},
        "difference": {row.name: row.difference for row in rows if row.difference is not None},
        **more,
        "environment": environment(),
    }
    file.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
