"""A command's outside: its options, its result on the terminal and in a file, Ctrl-C."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from mtserve_client.errors import MtserveError

from mtserve_backend.embedded import ServerError
from perf.lab.presets import PRESETS, Preset
from perf.lab.result import Figure, Result, Table

EXIT_CODES = """\
exit codes: 0 measured; 1 it could not be (stderr says why); 2 the command line is wrong; 130 interrupted, and what was
measured until then is printed and written
"""


@dataclass
class Findings:
    """Filled as a measurement goes, so that an interrupted one can tell what it has."""

    figures: list[Figure] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)


Measure = Callable[[Preset, int, Findings], None]


def run(name: str, doc: str | None, measure: Measure, argv: Sequence[str] | None = None) -> int:
    """`python -m perf.NAME`. `measure` gets the preset, the seed and where its findings go."""
    arguments = _parser(name, doc).parse_args(argv)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    started, begin = datetime.now(timezone.utc).isoformat(timespec="seconds"), time.monotonic()
    findings, interrupted = Findings(), False
    preset = PRESETS[arguments.preset]
    try:
        measure(preset, arguments.seed, findings)
    except (ServerError, MtserveError, RuntimeError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    except KeyboardInterrupt:
        interrupted = True
    seconds = time.monotonic() - begin
    result = Result(name, preset.name, arguments.seed, started, seconds, findings.figures, findings.tables, interrupted)
    sys.stdout.write(f"{result.text()}\n\n{name}, preset {preset.name}: {seconds:.0f} s\n")
    if arguments.json:
        result.write(arguments.json)
    return 130 if interrupted else 0


def _parser(name: str, doc: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m perf.{name}",
        description=doc,
        epilog=f"example: python -m perf.{name} --preset smoke --json {name}.json\n\n{EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--preset", choices=tuple(PRESETS), default="cpu",
        help="how large: smoke (seconds), cpu (default; minutes on two cores), a100, h200",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result here as well")
    return parser
