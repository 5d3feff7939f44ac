"""`mtserve-client`: rank and warm from a shell."""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mtserve_client import __version__
from mtserve_client.client import RankingClient
from mtserve_client.errors import (
    DeadlineExceeded,
    HistoryNeeded,
    InvalidRequest,
    ModelNotFound,
    MtserveError,
    ServerUnavailable,
)
from mtserve_client.events import Events
from mtserve_client.protocol import CacheInfo, Ranking, check_candidates, check_top_k
from mtserve_client.users import UserId, check_user

OK, BAD_ARGUMENTS, UNREACHABLE, REFUSED, FAULT, INTERRUPTED = 0, 2, 3, 4, 5, 130

_EXIT_CODES = """\
exit codes:
  0    done
  2    bad arguments, or a history file that cannot be read
  3    the server cannot be reached, or gave no answer within --timeout
  4    the server refused the request (unknown item or model, ...)
  5    the server failed
  130  interrupted
"""

_EXAMPLES = """\
examples:
  mtserve-client rank --user 5 --items 1,2,3 --actions 1,1,0 --candidates 5,6,7 --top-k 2
  mtserve-client rank --user-string alice --history alice.json --candidates 5,6 --json
  mtserve-client warm --url http://localhost:8000 --user 5 --history history.csv
  mtserve-client warm --url a:8001 b:8001 --model hstu_0 hstu_1 --user 5 --history history.csv

"""

_HISTORY_HELP = """\
the user's history, oldest first. A .json file: {"items": [...], "actions": [...]}, or [[item, action], ...].
A .csv file: two columns, item and action; with a header line, the columns of those names"""


class _BadArgumentsError(Exception):
    """What the user gave cannot be used; the message says why."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    options = _parser().parse_args(arguments)
    where = ", ".join(options.url)
    try:
        user, history, candidates, top_k = _request(options)
        client = RankingClient(
            options.url,
            options.model,
            timeout_s=options.timeout,
            ca_file=options.ca_file,
            cert_file=options.cert_file,
            key_file=options.key_file,
        )
    except (_BadArgumentsError, InvalidRequest) as error:
        return _complain(error, BAD_ARGUMENTS)
    try:
        with client:
            if options.command == "warm":
                cache = client.warm(user, history)
                _show_cache(cache, options.json)
            else:
                ranking = client.rank(user, history, candidates=candidates, top_k=top_k)
                _show_ranking(ranking, candidates, options.json)
    except (ServerUnavailable, DeadlineExceeded) as error:
        return _complain(error, UNREACHABLE, where)
    except (InvalidRequest, ModelNotFound, HistoryNeeded) as error:
        return _complain(error, REFUSED, where)
    except MtserveError as error:
        return _complain(error, FAULT, where)
    except KeyboardInterrupt:
        return INTERRUPTED
    return OK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mtserve-client",
        description="Rank candidates for a user on an mtserve server, or prepare the user's state.",
        epilog=_EXAMPLES + _EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"mtserve-client {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="{rank,warm}")
    for name, summary in (
        ("rank", "score candidates for a user and rank them"),
        ("warm", "prepare a user's state, so that the next rank finds it"),
    ):
        command = commands.add_parser(
            name,
            help=summary,
            description=summary.capitalize() + ".",
            epilog=_EXAMPLES + _EXIT_CODES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_argument(
            "--url",
            nargs="+",
            default=["localhost:8001"],
            metavar="URL",
            help="host:port or grpc://host:port for gRPC, http://host:port for HTTP, grpcs:// and https:// with TLS; "
            "several divide the users among them (default: localhost:8001)",
        )
        command.add_argument(
            "--model", nargs="+", default=["hstu"], metavar="NAME", help="the model's name, or several (default: hstu)"
        )
        command.add_argument("--ca-file", metavar="PEM", help="authorities to trust, with TLS (default: the system's)")
        command.add_argument("--cert-file", metavar="PEM", help="a certificate for servers that ask for one")
        command.add_argument("--key-file", metavar="PEM", help="its key")
        who = command.add_mutually_exclusive_group(required=True)
        who.add_argument("--user", metavar="N", help="the user's ID, an integer from 1 to 2**64 - 1")
        who.add_argument(
            "--user-string",
            metavar="ID",
            help="the user's ID, a string; the integer 5 and the string 5 are two users",
        )
        command.add_argument("--history", metavar="FILE", type=Path, help=_HISTORY_HELP)
        command.add_argument("--items", metavar="I,I,...", help="the history's item IDs, oldest first")
        command.add_argument("--actions", metavar="A,A,...", help="the action taken on each item")
        command.add_argument(
            "--timeout", type=float, default=30.0, metavar="S", help="seconds to wait (default: %(default)g)"
        )
        command.add_argument("--json", action="store_true", help="print one JSON object")
        if name == "rank":
            command.add_argument("--candidates", required=True, metavar="I,I,...", help="item IDs to score")
            command.add_argument("--top-k", type=int, metavar="K", help="how many to rank (default: all)")
    return parser


def _request(options: argparse.Namespace) -> tuple[UserId, Events, list[int], int | None]:
    """User, history, candidates and top_k as given."""
    user = check_user(options.user_string if options.user is None else _integer(options.user, "--user"))
    if options.history is not None:
        if options.items is not None or options.actions is not None:
            raise _BadArgumentsError("give --history, or --items and --actions, not both")
        history = _read_history(options.history)
    elif options.items is None or options.actions is None:
        raise _BadArgumentsError("a history is needed: --history FILE, or --items and --actions")
    else:
        history = Events(_integers(options.items, "--items"), _integers(options.actions, "--actions"))  # type: ignore[arg-type]
    if options.command == "warm":
        return user, history, [], None
    candidates = _integers(options.candidates, "--candidates")
    check_candidates(candidates)
    return user, history, candidates, check_top_k(options.top_k)


def _integer(text: str, option: str) -> int:
    try:
        return int(text)
    except ValueError:
        hint = "; for a string ID use --user-string" if option == "--user" else ""
        raise _BadArgumentsError(f"{option}: {text!r} is not an integer{hint}") from None


def _integers(text: str, option: str) -> list[int]:
    return [_integer(part, option) for part in text.split(",")] if text.strip() else []


def _read_history(path: Path) -> Events:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _BadArgumentsError(f"cannot read {path}: {error}") from None
    try:
        if path.suffix.lower() == ".json":
            return _from_json(json.loads(text))
        if path.suffix.lower() == ".csv":
            return _from_csv(text)
    except (ValueError, csv.Error) as error:  # JSONDecodeError and InvalidRequest are ValueErrors
        raise _BadArgumentsError(f"{path}: {error}") from None
    raise _BadArgumentsError(f"{path}: a history file ends in .json or .csv")


def _from_json(content: Any) -> Events:
    if isinstance(content, dict):
        if "items" not in content or "actions" not in content:
            raise ValueError('an object needs "items" and "actions"')
        return Events(content["items"], content["actions"])
    if isinstance(content, list):
        return Events.of(content)
    raise ValueError('expected {"items": [...], "actions": [...]} or [[item, action], ...]')


def _from_csv(text: str) -> Events:
    rows = [row for row in csv.reader(text.splitlines()) if row]
    columns = (0, 1)
    if rows and not rows[0][0].strip().lstrip("-").isdigit():
        names = [name.strip().lower() for name in rows.pop(0)]
        if "item" not in names or "action" not in names:
            raise ValueError(f"the header names {', '.join(names)}; columns item and action are needed")
        columns = (names.index("item"), names.index("action"))
    pairs = []
    for number, row in enumerate(rows, 1):
        try:
            pairs.append((int(row[columns[0]]), int(row[columns[1]])))
        except (ValueError, IndexError):
            raise ValueError(f"event {number}: expected an item and an action, got {','.join(row)!r}") from None
    return Events.of(pairs)


def _show_ranking(ranking: Ranking, candidates: list[int], as_json: bool) -> None:
    if as_json:
        _say(
            json.dumps(
                {
                    "ranking": ranking.ranking.tolist(),
                    "candidates": candidates,
                    "scores": ranking.scores.tolist(),
                    "cache": _cache_fields(ranking.cache),
                }
            )
        )
        return
    scores = dict(zip(candidates, ranking.scores.tolist(), strict=True))
    width = max((len(str(item)) for item in candidates), default=4)
    _say(f"{'item':>{max(width, 4)}}  score" + (" (one column per task)" if ranking.scores.shape[1] > 1 else ""))
    for item in ranking.ranking.tolist():
        _say(f"{item:>{max(width, 4)}}  " + "  ".join(f"{score:.6g}" for score in scores[item]))
    _show_cache(ranking.cache, as_json=False)


def _show_cache(cache: CacheInfo, as_json: bool) -> None:
    if as_json:
        _say(json.dumps({"cache": _cache_fields(cache)}))
        return
    _say(
        f"history of {cache.history_length}: {cache.device} on the device, {cache.host} on the host, "
        f"{cache.recomputed} recomputed, {cache.new} new ({cache.hit_ratio:.1%} from the cache)"
    )


def _cache_fields(cache: CacheInfo) -> dict[str, float]:
    return {
        "device": cache.device,
        "host": cache.host,
        "recomputed": cache.recomputed,
        "new": cache.new,
        "history_length": cache.history_length,
        "hit_ratio": round(cache.hit_ratio, 6),
    }


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")


def _complain(error: Exception, code: int, url: str | None = None) -> int:
    where = f"{url}: " if url is not None else ""
    sys.stderr.write(f"mtserve-client: {where}{error}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
