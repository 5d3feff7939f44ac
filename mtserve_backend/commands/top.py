"""`mtserve top`: a running server's tiers, hit ratios, throughput and latencies, in a terminal."""

import math
import time

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from mtserve_backend.commands.rates import ModelView, view
from mtserve_backend.commands.scrape import Scrape, scrape
from mtserve_backend.commands.top_options import TopOptions
from mtserve_backend.embedded.errors import ServerError

_BAR = 12
_POOLS = {"device": "device", "onload": "onload buffer", "host": "host"}
_DIRECTIONS = {"onload": "onload", "scatter": "scatter", "offload": "offload"}


def top(options: TopOptions, console: Console) -> None:
    """Until Ctrl-C, or one frame with `once`. Raises ServerError where there is nothing to show."""
    if not options.once and not console.is_terminal:
        raise ServerError("A live view is for a terminal, and this is none: `mtserve top --once` prints one frame.")
    before, since = scrape(options.url), time.monotonic()
    _models(before, options)
    if options.once:
        time.sleep(options.interval)
        after = scrape(options.url)
        console.print(frame(options, before, after, time.monotonic() - since))
        return
    shown: RenderableType = Text(f"looking at {options.url} ...")
    with Live(shown, console=console, screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(options.interval)
            try:
                after, now = scrape(options.url), time.monotonic()
                shown = frame(options, before, after, now - since)
                before, since = after, now
            except ServerError as error:  # it may come back
                live.update(Group(Text(str(error), style="bold red"), shown), refresh=True)
            else:
                live.update(shown, refresh=True)


def frame(options: TopOptions, before: Scrape, after: Scrape, seconds: float) -> RenderableType:
    """All models, one below the other."""
    heading = Text.assemble(
        ("mtserve top", "bold"), f"  {options.url}  {time.strftime('%H:%M:%S')}  over {seconds:.1f} s"
    )
    return Group(heading, *(_model(view(before, after, seconds, name)) for name in _models(after, options)))


def _models(found: Scrape, options: TopOptions) -> list[str]:
    names = found.models()
    if not names:
        raise ServerError(f"{options.url} has no metrics of mtserve: no model of it is loaded there.")
    if options.model is None:
        return names
    if options.model not in names:
        raise ServerError(f"There is no model {options.model} at {options.url}: there are {', '.join(names)}.")
    return [options.model]


def _model(shown: ModelView) -> RenderableType:
    state = Text("up", style="green") if shown.up else Text("DOWN", style="bold red")
    if shown.streams_broken:
        state.append(f", {shown.streams_broken:.0f} streams broken", style="bold red")
    title = Text.assemble(shown.name, "  ", state)
    return Panel(Group(_traffic(shown), _tiers(shown), _moves(shown)), title=title, title_align="left")


def _traffic(shown: ModelView) -> Columns:
    """As many beside each other as there is room for."""
    errors = {name: rate for name, rate in shown.outcomes.items() if rate and name != "ok"}
    said = ", ".join(f"{name} {rate:.1f}" for name, rate in errors.items()) or "none"
    hits = shown.hit_ratio["device"] + shown.hit_ratio["host"]
    pairs = [
        _pair("requests/s", f"{shown.outcomes.get('ok', 0.0):.1f}"),
        _pair("errors/s", said, "red" if errors else ""),
        _pair("in a batch", number(shown.batch_requests)),
        _pair("rows/s", amount(shown.rows)),
        _pair("engine busy", percent(shown.busy)),
        *(_pair(f"p{q * 100:g}", duration(seconds)) for q, seconds in shown.latency.items()),
        _pair("queue", duration(shown.queue_s)),
        _pair("onload wait p99", duration(shown.onload_wait_p99)),
        _pair("hit ratio", percent(hits), "green" if hits >= 0.9 else ""),
        _pair("device", percent(shown.hit_ratio["device"])),
        _pair("host", percent(shown.hit_ratio["host"])),
        _pair("since start", percent(shown.hit_ratio_since_start)),
        _pair("recomputed/s", amount(shown.tokens.get("recomputed", 0.0))),
    ]
    return Columns(pairs, equal=True, padding=(0, 2))


def _tiers(shown: ModelView) -> Table:
    table = _table("tier", "", "used", "size", "users", "tokens", "evicted/s")
    for pool, name in _POOLS.items():
        found = shown.pools.get(pool)
        if found is None or not found.size:
            continue
        users, tokens = shown.users.get(pool), shown.cached_tokens.get(pool)
        table.add_row(
            name,
            ProgressBar(total=found.size, completed=found.used, width=_BAR),
            size(found.used),
            size(found.size),
            amount(users) if users is not None else "",
            amount(tokens) if tokens is not None else "",
            number(shown.evictions[pool]) if pool in shown.evictions else "",
        )
    table.add_row(
        "token logs",
        ProgressBar(total=shown.log_limit_bytes or 1.0, completed=shown.log_bytes, width=_BAR),
        size(shown.log_bytes),
        size(shown.log_limit_bytes),
        amount(shown.users.get("known", 0.0)),
        "",
        "",
    )
    return table


def _moves(shown: ModelView) -> Table:
    table = _table("transfer", "moved/s", "bandwidth", "failed", "pending")
    for direction, name in _DIRECTIONS.items():
        pending = f"{amount(shown.offload_pending_tokens)} of {amount(shown.offload_quota_tokens)} tokens"
        failed, speed = shown.failures.get(direction), shown.bandwidth.get(direction, math.nan)
        table.add_row(
            name,
            size(shown.moved_bytes.get(direction, 0.0)),
            "-" if math.isnan(speed) else f"{size(speed)}/s",
            "" if failed is None else Text(f"{failed:.0f}", style="red" if failed else ""),
            pending if direction == "offload" else "",
        )
    return table


def _table(*headings: str) -> Table:
    table = Table(box=None, show_header=any(headings), pad_edge=False, expand=True)
    for heading in headings:
        table.add_column(heading, header_style="dim", no_wrap=True)
    return table


def _pair(name: str, value: str, style: str = "") -> Text:
    return Text.assemble((f"{name} ", "dim"), (value, style))


def number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.1f}"


def percent(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.1%}"


def duration(seconds: float) -> str:
    if math.isnan(seconds):
        return "-"
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} us"
    return f"{seconds * 1e3:.1f} ms" if seconds < 1.0 else f"{seconds:.2f} s"


def amount(value: float) -> str:
    for unit, factor in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= 10 * factor:
            return f"{value / factor:.1f}{unit}"
    return f"{value:.0f}"


def size(value: float) -> str:
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if value >= factor:
            return f"{value / factor:.1f} {unit}"
    return f"{value:.0f} B"
