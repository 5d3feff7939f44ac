"""The command line that all measuring commands share: arguments, errors, interrupts, and what is written at the end."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from mtserve_backend.config import ConfigError
from mtserve_backend.embedded import ServerError
from mtserve_backend.repository import RepositoryError
from perf.datasets import DatasetError
from perf.environment import environment
from perf.lab.presets import CPU, PRESETS, Preset
from perf.lab.result import Figure, Plot, Result, Table, save
from perf.lab.text import result_text
from perf.perf_analyzer import PerfAnalyzerError
from perf.traces.metadata import TraceError
from perf.traffic import interrupts
from perf.traffic.target import TargetFailed

INTERRUPTED = 130
# Errors that a user can act upon: their message is all that is said.
EXPECTED = (
    ConfigError,
    DatasetError,
    OSError,
    PerfAnalyzerError,
    RepositoryError,
    ServerError,
    TargetFailed,
    TraceError,
)
EXIT_CODES = """
exit codes: 0 measured (an aim that is MISSED is a result, too); 1 it could not be, stderr says why; 2 the command line
is wrong; 130 interrupted: what was measured until then is printed and written"""


class Refused(ValueError):
    """What was asked for cannot be measured; the message says what can."""


@dataclass
class Run:
    """One run of a command: what it was asked for, and what it has found so far."""

    arguments: argparse.Namespace
    preset: Preset
    seed: int
    figures: list[Figure] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    plots: list[Plot] = field(default_factory=list)
    _conclusions: list[Callable[[], None]] = field(default_factory=list)

    def at_the_end(self, conclude: Callable[[], None]) -> None:
        """To be called when measuring has ended, by itself, by an error or by Ctrl-C: makes figures of it."""
        self._conclusions.append(conclude)

    def conclude(self) -> None:
        for conclude in self._conclusions:
            conclude()

    def aim(self, value: float) -> float | None:
        """An aim that was set for the cpu preset; elsewhere nothing is aimed at."""
        return value if self.preset is CPU else None

    def bar(self, label: str, total: int) -> tqdm[Any]:
        """A progress bar on stderr, where that is a terminal."""
        return tqdm(total=total, desc=label, file=sys.stderr, disable=None, smoothing=0.1, leave=False)


@dataclass(frozen=True)
class Command:
    """`measure` fills the run. `about` and `example` are for --help; `options` adds what only this command has.

    `uses_device`: whether what it finds depends on the preset's device, which must then be there.
    """

    name: str
    about: str
    example: str
    measure: Callable[[Run], None]
    options: Callable[[argparse.ArgumentParser], None] = lambda parser: None
    uses_device: bool = True


def main(command: Command, argv: Sequence[str] | None = None) -> int:
    """Run it; the exit code."""
    arguments = _parser(command).parse_args(argv)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    run = Run(arguments, PRESETS[arguments.preset], arguments.seed)
    started, begin = datetime.now(timezone.utc), time.monotonic()
    problem = ""
    interrupted = False
    try:
        if command.uses_device:
            _check_device(run.preset)
        command.measure(run)
    except KeyboardInterrupt:
        interrupted = True
    except (*EXPECTED, Refused) as error:
        problem = str(error)
    run.conclude()
    result = _result(command, run, started.isoformat(timespec="seconds"), time.monotonic() - begin, interrupted)
    print("\n\n".join(result_text(result)))
    print(
        f"\n{command.name}, preset {run.preset.name} ({run.preset.about}), seed {run.seed}: {result.duration_s:.0f} s"
    )
    if arguments.json and not problem:
        save(result, arguments.json)
        print(f"written: {arguments.json}")
    if problem:
        print(f"{command.name}: {problem}", file=sys.stderr)
        return 1
    if interrupted:
        print("interrupted: this is what was measured until then", file=sys.stderr)
        return INTERRUPTED
    return 0


def start(command: Command) -> None:
    """As a program: a polite kill ends it as Ctrl-C does."""
    interrupts.install()
    sys.exit(main(command))


def _check_device(preset: Preset) -> None:
    if preset.device == "cuda" and not torch.cuda.is_available():
        raise Refused(
            f"preset {preset.name} measures a GPU, and torch {torch.__version__} sees none: take preset cpu or smoke"
        )


def _result(command: Command, run: Run, started: str, seconds: float, interrupted: bool) -> Result:
    return Result(
        command=command.name,
        preset=run.preset.name,
        seed=run.seed,
        settings={
            key: str(value) if isinstance(value, Path) else value
            for key, value in vars(run.arguments).items()
            if key not in ("json", "records", "preset", "seed")
        },
        started=started,
        duration_s=seconds,
        interrupted=interrupted,
        figures=run.figures,
        tables=run.tables,
        plots=run.plots,
        **environment(),
    )


def _parser(command: Command) -> argparse.ArgumentParser:
    presets = "\n".join(f"  {name:<8}{PRESETS[name].about}" for name in PRESETS)
    parser = argparse.ArgumentParser(
        prog=f"python -m perf.{command.name}",
        description=command.about,
        epilog=f"presets:\n{presets}\n\nexample: python -m perf.{command.name} {command.example}\n{EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--preset", choices=tuple(PRESETS), default="cpu", help="how large it is (default: cpu)")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the result here, for perf.report and perf.compare"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of weights and users (default: 0)")
    command.options(parser)
    return parser


def at_least_one(text: str) -> int:
    """An argparse type."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number of 1 or more")
    return value


def positive(text: str) -> float:
    """An argparse type."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return value
