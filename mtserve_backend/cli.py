"""`mtserve`: the command line. Parses, prints, and turns errors into one sentence and an exit code."""

import argparse
import json
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict

from mtserve_backend.commands import arguments
from mtserve_backend.commands.doctor import Finding, examine
from mtserve_backend.commands.package import PackageOptions, package
from mtserve_backend.commands.serve import ServeOptions, serve
from mtserve_backend.commands.top_options import TopOptions
from mtserve_backend.embedded import ServerError
from mtserve_backend.repository import RepositoryError, UsageError, parse_settings

_EXIT_CODES = """\
exit codes:
  0  it went well (serve: it was stopped by a signal and ended in order)
  1  it did not; stderr says why and what to do
  2  the command line is wrong
"""
_PIPE_COLUMNS = 120
_SERVE_EXAMPLES = """\
examples:
  mtserve serve --weights runs/kuairand/weights
  mtserve serve --weights w --set cache_mode=device --set device_cache=2GiB
  mtserve serve --config gpu --address 0.0.0.0 --grpc-port 0
  mtserve serve --repository /models

"""
_DOCTOR_EXAMPLES = """\
examples:
  mtserve doctor
  mtserve doctor --weights w --set host_cache=64GiB --grpc-port 9001
  mtserve doctor --json | jq '.[] | select(.status != "ok")'

"""
_PACKAGE_EXAMPLES = """\
examples:
  mtserve package --model-dir runs/kuairand/weights --out /models
  mtserve package --model-dir w --out /models --gpus 0 --set device_cache=40GiB --set host_cache=200GiB
  mtserve package --model-dir w --out /models --gpus 0,1     (writes hstu_0 and hstu_1, one a GPU)

A folder that `mtserve package` wrote before is replaced. A server in explicit mode takes the new one when told to:
  curl -X POST localhost:8000/v2/repository/models/hstu/load

"""
_TOP_EXAMPLES = """\
examples:
  mtserve top
  mtserve top triton-3:8002 --model hstu_0 --interval 5
  mtserve top --once | mail -s "$(hostname)" operations

"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="mtserve: %(message)s", stream=sys.stderr)
    try:
        code = int(options.run(options))
        sys.stdout.flush()
        return code
    except UsageError as error:
        print(f"mtserve: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # of `mtserve doctor | head`: nobody reads on
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ServerError, RepositoryError) as error:
        print(f"mtserve: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("mtserve: interrupted", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mtserve",
        description="Serve generative recommenders with a per-user key/value cache on Triton.",
        epilog=f"`mtserve COMMAND --help` shows examples.\n\n{_EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_serve(commands)
    _add_doctor(commands)
    _add_package(commands)
    _add_top(commands)
    return parser


def _add_serve(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    command = commands.add_parser(
        "serve",
        help="start tritonserver here and stay in the foreground",
        description="Start the tritonserver of the nvidia-pytriton wheel with a model repository, and stay in the\n"
        "foreground. Ctrl-C or SIGTERM stops it in order; a second one kills it.",
        epilog=_SERVE_EXAMPLES + _EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_common(command)
    command.add_argument("--log-file", type=arguments.path, metavar="FILE", help="the server's log (default: stderr)")
    command.add_argument(
        "--log-verbose", type=arguments.verbosity, default=0, metavar="LEVEL", help="Triton's verbosity (default: 0)"
    )
    command.add_argument(
        "--exit-timeout",
        type=arguments.whole_seconds,
        default=30,
        metavar="SECONDS",
        help="how long a stop waits for requests in flight (default: 30)",
    )
    command.add_argument(
        "--ready-timeout",
        type=arguments.positive_seconds,
        default=300.0,
        metavar="SECONDS",
        help="how long loading may take (default: 300)",
    )
    command.set_defaults(run=_serve)


def _add_doctor(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    command = commands.add_parser(
        "doctor",
        help="check whether `serve` will work on this machine",
        description="Check whether `mtserve serve` with the same options will work here. One line a check.",
        epilog=_DOCTOR_EXAMPLES + _EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_common(command)
    command.add_argument("--json", action="store_true", help="print a JSON list of {check, status, text}")
    command.set_defaults(run=_doctor)


def _add_package(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    command = commands.add_parser(
        "package",
        help="write a self-contained model folder for a Triton server",
        description="Write OUT/NAME/{config.pbtxt,1/model.py,1/mtserve_backend,1/weights}: a model folder for any\n"
        "Triton server whose Python has torch, numpy and nvtx. Prints the folders written.",
        epilog=_PACKAGE_EXAMPLES + _EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument(
        "--model-dir",
        dest="weights",
        type=arguments.path,
        required=True,
        metavar="DIR",
        help="the folder with config.json and model.safetensors",
    )
    command.add_argument(
        "--out", type=arguments.path, required=True, metavar="DIR", help="the model repository to write into"
    )
    command.add_argument("--name", default="hstu", help="the model's name in Triton (default: hstu)")
    command.add_argument(
        "--gpus",
        type=arguments.gpus,
        default=(),
        metavar="N[,N...]",
        help="the GPU to compute on; several: a model for each, NAME_0, NAME_1, ..., and "
        "NAME_router in front of them (default: none, the CPU)",
    )
    command.add_argument(
        "--set",
        dest="settings",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a knob of docs/operations.md; repeat it for more",
    )
    for option, text in (
        ("--max-batch-size", "the most requests in one execution"),
        ("--queue-delay-us", "microseconds that a lone request waits for company"),
        ("--max-waiting-users", "users with a request waiting or running at one time"),
    ):
        command.add_argument(option, type=int, metavar="N", help=f"{text} (default: as shipped)")
    command.set_defaults(run=_package)


def _add_top(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    command = commands.add_parser(
        "top",
        help="watch a running server: tiers, hit ratios, throughput, latencies",
        description="A live view of a server's models from its metrics port. Ctrl-C ends it. Rates are those of the\n"
        "last interval; what is not known is shown as -.",
        epilog=_TOP_EXAMPLES + _EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument(
        "address",
        nargs="?",
        default="localhost:8002",
        metavar="HOST:PORT",
        help="the server's metrics port (default: localhost:8002)",
    )
    command.add_argument("--model", metavar="NAME", help="only this model (default: all of the server's)")
    command.add_argument(
        "--interval", type=arguments.interval, default=2.0, metavar="SECONDS", help="between two looks (default: 2)"
    )
    command.add_argument("--once", action="store_true", help="print one frame, of one interval, and end")
    command.set_defaults(run=_top)


def _add_common(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--repository",
        type=arguments.path,
        metavar="DIR",
        help="the model repository (default: the one that came with mtserve)",
    )
    command.add_argument(
        "--weights",
        type=arguments.path,
        metavar="DIR",
        help="the folder with config.json and model.safetensors of model hstu",
    )
    command.add_argument(
        "--set",
        dest="settings",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a parameter of model hstu, as in its config.pbtxt; repeat it for more. With --set or --weights "
        "only that model is served",
    )
    command.add_argument("--config", default="cpu", metavar="NAME", help="cpu (default), or gpu: configs/gpu.pbtxt")
    command.add_argument(
        "--address",
        type=arguments.address,
        default="127.0.0.1",
        help="where to listen (default: 127.0.0.1; 0.0.0.0 = every interface)",
    )
    for service, port in (("grpc", 8001), ("http", 8000), ("metrics", 8002)):
        command.add_argument(
            f"--{service}-port",
            type=int,
            default=port,
            metavar="PORT",
            help=f"0 = any free one (default: {port})",
        )


def _serve_options(options: argparse.Namespace) -> ServeOptions:
    given = vars(options) | {"settings": parse_settings(options.settings)}
    return ServeOptions(**{name: given[name] for name in ServeOptions.__dataclass_fields__ if name in given})


def _serve(options: argparse.Namespace) -> int:
    serve(_serve_options(options))
    return 0


def _doctor(options: argparse.Namespace) -> int:
    findings = examine(_serve_options(options))
    print(json.dumps([asdict(finding) for finding in findings], indent=2) if options.json else _report(findings))
    return int(any(finding.status == "problem" for finding in findings))


def _package(options: argparse.Namespace) -> int:
    given = vars(options) | {"settings": parse_settings(options.settings)}
    for folder in package(PackageOptions(**{name: given[name] for name in PackageOptions.__dataclass_fields__})):
        print(folder)
    return 0


def _top(options: argparse.Namespace) -> int:
    try:
        from rich.console import Console

        from mtserve_backend.commands.top import top
    except ImportError as error:
        raise ServerError(
            f"`mtserve top` needs {error.name}, of the extra: `pip install 'mtserve[server]'`."
        ) from error
    # Beside a terminal rich takes 80 columns for granted, and cuts what is wider.
    wide = None if sys.stdout.isatty() or "COLUMNS" in os.environ else _PIPE_COLUMNS
    top(TopOptions(options.address, options.model, options.interval, options.once), Console(width=wide))
    return 0


def _report(findings: Sequence[Finding]) -> str:
    width = max(len(finding.check) for finding in findings)
    return "\n".join(f"{finding.status:<8} {finding.check:<{width}}  {finding.text}" for finding in findings)


if __name__ == "__main__":
    sys.exit(main())
