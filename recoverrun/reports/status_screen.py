"""A `Status` as panels, for a terminal.

Calm by rule: colour means state (green in order, yellow reduced, red lost), everything else is the
terminal's own foreground or dim. What is in order folds; what is not comes first.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from recoverrun.reports.goodput import goodput_line
from recoverrun.reports.screen_style import (
    BAD,
    GOOD,
    QUIET,
    REDUCED,
    STRONG,
    cut,
    frame,
    time_of_day,
    words,
)
from recoverrun.reports.status import Health, Replica, Status
from recoverrun.reports.status_events import Happening, Kind
from recoverrun.text import (
    UNICODE,
    Glyphs,
    clock,
    in_order,
    plural,
    sanitize,
    span,
)

ROWS = 16  # replicas that are shown one by one
SHARDS = 16  # shards that are shown one by one
EVENTS = 8
SPARKS = 24  # step times

_HEALTH = {
    "waiting": QUIET,
    "starting": QUIET,
    "running": GOOD,
    "degraded": REDUCED,
    "ended": GOOD,
    "stopped": REDUCED,
    "failed": BAD,
}


def sparkline(values: Sequence[float], columns: int, signs: Glyphs) -> str:
    """The newest `columns` values as heights, from half the least to the greatest."""
    shown = [value for value in values if value > 0][-columns:]
    if not shown:
        return ""
    low, high = min(shown) / 2, max(shown)
    top = len(signs.sparks) - 1
    return "".join(signs.sparks[round((v - low) / max(high - low, 1e-9) * top)] for v in shown)


def render(
    status: Status,
    signs: Glyphs = UNICODE,
    *,
    live: bool = False,
    rows: int = ROWS,
    events: int = EVENTS,
) -> RenderableType:
    """The whole screen, with at most so many rows of replicas. `live` adds the line of keys."""
    parts: list[RenderableType] = [_head(status, signs)]
    if status.replicas and rows:
        parts.append(_mesh(status, signs, rows))
    if status.happenings and events:
        parts.append(_events(status, signs, events))
    if live:
        line = f" q  leave    s  stacks    every 0.5 s from {status.run_dir}"
        parts.append(Text(line, style=QUIET, no_wrap=True, overflow=cut(signs)))
    return Group(*parts)


# ------------------------------------------------------------------------------------- the head


def _head(status: Status, signs: Glyphs) -> Panel:
    grid = Table.grid(expand=True, padding=(0, 1))
    grid.add_column(style=QUIET, no_wrap=True, width=9)
    grid.add_column(ratio=1, overflow="fold")
    grid.add_row("state", _state(status, signs))
    if status.cause:
        grid.add_row("cause", words(status.cause, BAD, signs))
    if status.silent_s:
        grid.add_row("silence", _silence(status, signs))
    if status.last_step >= 0:
        grid.add_row("step", _step(status, signs))
        grid.add_row("this step", _account(status, signs))
        grid.add_row("all steps", _invariant(status, signs))
        line = words(goodput_line(status.goodput), "", signs)
        line.no_wrap, line.overflow = True, cut(signs)
        grid.add_row("goodput", line)
    if status.pids and not status.replicas:
        grid.add_row("pids", Text(in_order(status.pids.values()), style=QUIET))
    if status.promise:
        line = words(status.promise, STRONG, signs)
        reason = words(f"  {status.promise_reason}", QUIET, signs)
        grid.add_row(
            "promise", Text.assemble(line, "  ", reason, overflow=cut(signs), no_wrap=True)
        )
    if status.losses:
        grid.add_row("losses", _losses(status, signs))
    if status.snapshots:
        grid.add_row("snapshots", words(status.snapshots, "", signs))
    if status.unreadable:
        text = f"{plural(status.unreadable, 'place')} of the journal cannot be read"
        grid.add_row("journal", Text(text, style=REDUCED))
    return frame(grid, f"recoverrun status {signs.dot} {sanitize(status.title, 60)}", signs)


def _state(status: Status, signs: Glyphs) -> Table:
    line = Text(no_wrap=True, overflow=cut(signs))
    line.append(f"{signs.alive} {status.phase}", style=f"bold {_HEALTH[status.phase]}")
    if status.exit_code is not None:
        line.append(f"  exit code {status.exit_code}", style="" if status.exit_code else QUIET)
    if status.replicas:
        line.append(f"  {status.live} of {plural(len(status.replicas), 'replica')}")
    elif status.world_size:
        line.append(f"  {status.alive} of {plural(status.world_size, 'worker')} up")
    if status.idle_s and not status.silent_s:
        line.append(f"  no step for {span(status.idle_s)}", style=REDUCED)
    if status.generation > 0:
        line.append(f"  generation {status.generation}", style=QUIET)
    row = Table.grid(expand=True, padding=(0, 1, 0, 0))
    row.add_column(ratio=1)
    row.add_column(justify="right", style=QUIET, no_wrap=True)
    row.add_row(line, f"up {clock(status.up_s)}")
    return row


def _silence(status: Status, signs: Glyphs) -> Text:
    return words(silence(status), REDUCED, signs)


def silence(status: Status) -> str:
    """The possible meaning of silence in the journal."""
    why = "the job hangs, or its launcher is gone"
    if status.phase == "starting":  # Imports, data and compilers take their time.
        why = "its script has not come to a step yet, or its launcher is gone"
    if status.cut_off:
        why = "the disk took none; nothing is known of the job since"
    return f"no record for {span(status.silent_s)}: {why}"


def _step(status: Status, signs: Glyphs) -> Table:
    line = Text(no_wrap=True, overflow=cut(signs))
    line.append(f"{status.last_step:,}", style=STRONG)
    if status.of:
        line.append(f" of {status.of:,} ({progress(status)})")
    line.append(f"  {span(status.step_ms / 1000)}")
    line.append(f"  usual {span(status.median_step_ms / 1000)}", style=QUIET)
    row = Table.grid(padding=(0, 2))
    row.add_column(no_wrap=True, overflow=cut(signs))
    row.add_column()
    row.add_row(line, _Sparks(status.recent_ms, signs))
    return row


@dataclass(frozen=True, slots=True)
class _Sparks:
    """Step times as heights: the newest for which there is room."""

    recent_ms: Sequence[float]
    signs: Glyphs

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(0, min(SPARKS, len(self.recent_ms)))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(sparkline(self.recent_ms, min(SPARKS, options.max_width), self.signs), "cyan")


def progress(status: Status) -> str:
    """The progress of the run, and the time left."""
    done = min(1.0, (status.last_step + 1) / status.of)
    left = f", {span(status.eta_s)} left" if status.eta_s > 0 and status.exit_code is None else ""
    return f"{math.floor(1000 * done) / 10:.1f} %{left}"


def _account(status: Status, signs: Glyphs) -> Text:
    whole = status.microbatches == status.total and not status.broken
    line = Text(no_wrap=True, overflow=cut(signs))
    line.append(f"{status.microbatches}/{status.total} microbatches ")
    line.append(signs.ok if whole else signs.bad, style=GOOD if whole else BAD)
    shown = [_quota(replica, signs) for replica in status.replicas[:ROWS]]
    more = f" {signs.ellipsis}" if len(status.replicas) > ROWS else ""
    line.append(f"  quotas {f' {signs.dot} '.join(shown)}{more}", style=QUIET)
    return line


def _quota(replica: Replica, signs: Glyphs) -> str:
    if not replica.live:
        return signs.bad
    return str(replica.quota) if replica.quota >= 0 else "?"


def _invariant(status: Status, signs: Glyphs) -> Text:
    good = status.exact == status.steps
    line = Text(f"{status.exact:,}/{status.steps:,} steps with each microbatch exactly once ")
    line.append(signs.ok if good else signs.bad, style=GOOD if good else BAD)
    if status.broken:
        line.append("  ")
        line.append_text(words(status.broken, BAD, signs))
    return line


def _losses(status: Status, signs: Glyphs) -> Text:
    open_losses = status.losses - status.survived
    line = Text(no_wrap=True, overflow=cut(signs))
    line.append(f"{status.losses} lost, {status.survived} survived")
    if status.returned:
        line.append(f", {status.returned} back")
    if open_losses > 0 and status.exit_code is None:
        line.append(f"  {signs.moved} recovering", style=REDUCED)
    if status.lost_s > 0:
        line.append(f"  in {span(status.lost_s)}", style=QUIET)
        redone, taken = status.redone_microbatches, status.taken_over_microbatches
        moved = f"  {redone:,} redone, {taken:,} taken over"
        line.append(moved, style=QUIET)
    return line


# ------------------------------------------------------------------------------------- the mesh


def _mesh(status: Status, signs: Glyphs, rows: int) -> Panel:
    table = Table(box=None, expand=True, padding=(0, 1), header_style=QUIET, pad_edge=False)
    table.add_column("replica", no_wrap=True, width=7)
    table.add_column("node", no_wrap=True, overflow=cut(signs), max_width=20)
    table.add_column("shards", no_wrap=True)
    table.add_column("pids", no_wrap=True, overflow=cut(signs), max_width=16)
    table.add_column("quota", no_wrap=True, justify="right", width=7)
    table.add_column("", ratio=1, no_wrap=True, overflow=cut(signs))
    shown, folded = choose(status.replicas, rows)
    for replica in shown:
        table.add_row(*_row(replica, signs))
    if folded:
        quotas = sorted({_quota(replica, signs) for replica in folded})
        note = Text(f"{signs.ellipsis} and {plural(len(folded), 'replica')} in order", style=QUIET)
        health = Text(f"{signs.alive} {signs.times}{len(folded[0].health)}", style=GOOD)
        table.add_row("", "", health, "", "-".join(quotas[:: max(1, len(quotas) - 1)]), note)
    hidden = len(status.replicas) - len(shown) - len(folded)
    if hidden:
        note = Text(f"{signs.ellipsis} and {plural(hidden, 'replica')} lost or in trouble")
        table.add_row("", "", Text(signs.bad, style=BAD), "", "", note)
    return frame(table, f"replicas {signs.times} shards", signs)


def _in_order(replica: Replica) -> bool:
    calm = replica.live and not replica.waited_for
    return calm and all(health in ("up", "done") for health in replica.health)


def choose(replicas: Sequence[Replica], rows: int = ROWS) -> tuple[list[Replica], list[Replica]]:
    """Replicas that are shown, those with problems first, and those that fold."""
    if len(replicas) <= rows:
        return list(replicas), []
    troubled = [replica for replica in replicas if not _in_order(replica)]
    healthy = [replica for replica in replicas if _in_order(replica)]
    room = max(min(2, rows - 1), rows - len(troubled))
    shown = sorted(troubled[: rows - room] + healthy[:room], key=lambda replica: replica.slot)
    return shown, healthy[room:]


def _row(replica: Replica, signs: Glyphs) -> Iterable[RenderableType]:
    if replica.live:
        quota = Text(str(replica.quota) if replica.quota >= 0 else signs.dash)
        extra = replica.quota - replica.home
        if replica.home and extra > 0:
            quota.append(f" +{extra}", style=REDUCED)
        share = Text("")
        if replica.quota > 0:
            home = min(replica.quota, replica.home or replica.quota)
            bar = min(32, home), min(16, max(0, replica.quota - home))
            share.append(signs.bar * bar[0], style=GOOD).append(signs.bar * bar[1], style=REDUCED)
        if replica.waited_for:
            share = words(replica.waited_for, REDUCED, signs)
    else:
        quota = Text(signs.dash, style=QUIET)
        share = words(f"lost: {replica.note}", BAD, signs)
        if replica.coming:
            share.append_text(words(f"; {replica.coming}", REDUCED, signs))
    nodes = words(" ".join(replica.nodes) or "?", "", signs)
    pids = Text(in_order(replica.pids), style=QUIET)
    return str(replica.slot), nodes, _shard_health(replica, signs), pids, quota, share


def _shard_health(replica: Replica, signs: Glyphs) -> Text:
    """One sign per shard; the rank that is to blame is red, those that went with it are quiet."""
    styles: dict[Health, tuple[str, str]] = {
        "up": (signs.alive, GOOD),
        "done": (signs.alive, QUIET),
        "stopped": (signs.bad, QUIET),
        "fault": (signs.bad, BAD),
    }
    if len(replica.health) > SHARDS:
        worst: Health = max(replica.health, key=list(styles).index)
        count = len(replica.health) if _in_order(replica) else replica.health.count(worst)
        sign, style = styles[worst]
        return Text(f"{sign} {signs.times}{count}", style=style)
    line = Text()
    for health in replica.health:
        sign, style = styles[health]
        line.append(f"{sign} ", style=style)
    line.rstrip()
    return line


# ----------------------------------------------------------------------------------- the events

_SIGNS: dict[Kind, tuple[str, str]] = {
    "lost": ("bad", BAD),
    "survived": ("ok", GOOD),
    "moved": ("moved", REDUCED),
    "joined": ("joining", GOOD),
    "warning": ("warn", BAD),
    "note": ("dot", QUIET),
    "end": ("dash", STRONG),
}


def _sign(happening: Happening, signs: Glyphs) -> Text:
    name, style = _SIGNS[happening.kind]
    return Text(str(getattr(signs, name)), style=style)


def _events(status: Status, signs: Glyphs, events: int) -> Panel:
    table = Table.grid(padding=(0, 1), expand=True)
    table.add_column(style=QUIET, no_wrap=True, width=8)
    table.add_column(no_wrap=True, width=2)
    table.add_column(ratio=1)
    for happening in status.happenings[-events:]:
        style = QUIET if happening.kind == "note" else ""
        text = words(happening.text, style, signs)
        when = time_of_day(happening.ts, status.utc_offset_s)
        table.add_row(when, _sign(happening, signs), text)
    return frame(table, "events", signs)
