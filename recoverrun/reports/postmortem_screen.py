"""The screen of a `Postmortem`. Knows no clock: instants are shown in the zone that it is given."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.rule import Rule
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from recoverrun.reports.named_cause import RootCause
from recoverrun.reports.postmortem import (
    LossReport,
    Postmortem,
    State,
    cells,
    company,
    cost,
    identity_ranges,
    invariant_line,
    phases,
    verdict,
)
from recoverrun.reports.proof import Proof
from recoverrun.reports.return_table import return_table
from recoverrun.reports.root_cause import also, evidence
from recoverrun.reports.screen_style import BAD, GOOD, QUIET, REDUCED, STRONG, time_of_day, words
from recoverrun.reports.time_table import time_table
from recoverrun.text import UNICODE, Glyphs, ascii_only, plural, ranges, sanitize, span

LOSSES = 12  # shown without --all
ROOTS = 3
LANES = 16
FINDINGS = 8

LOSS_HEADS = (
    "#", "when", "replica", "root", "cause", "with it", "step", "redone", "survived in"
)  # fmt: skip

_TONES = {
    "completed": GOOD,
    "failed": BAD,
    "stopped": REDUCED,
    "unfinished": REDUCED,
    "empty": QUIET,
}
_VERDICTS = {"proved": GOOD, "violated": BAD, "unproved": REDUCED}


def render(
    found: Postmortem,
    signs: Glyphs = UNICODE,
    *,
    columns: int = 80,
    utc_offset_s: int = 0,
    everything: bool = False,
) -> RenderableType:
    """The whole page, `columns` wide."""
    parts: list[RenderableType] = [_title(found, signs, utc_offset_s)]
    parts += [_section("verdict", signs), _verdict(found, signs)]
    if found.losses:
        parts += [_section("losses", signs), _losses(found, signs, utc_offset_s, everything)]
    if found.ways:
        shown = found.ways if everything else found.ways[:LOSSES]
        parts += [_section("returns", signs), return_table(shown, signs, utc_offset_s)]
        if len(shown) < len(found.ways):
            rest = len(found.ways) - len(shown)
            parts.append(Text(f"  {signs.ellipsis} and {rest} more (--all)", style=QUIET))
    if found.steps_back:
        lines = [
            f"{time_of_day(one.ts, utc_offset_s)}  {one}{f'; why: {one.why}' if one.why else ''}"
            for one in (found.steps_back if everything else found.steps_back[:LOSSES])
        ]
        parts += [_section("back to snapshots", signs), _list(lines, "", signs)]
    for heading, root in roots(found, everything):
        parts += [_section(heading, signs), _root(found, root, signs)]
    if found.goodput.steps:
        parts += [_section("time", signs), time_table(found.goodput, signs, columns)]
    if found.lanes and found.losses:
        parts += [_section("timeline", signs), _timeline(found, signs, columns, utc_offset_s)]
    if everything and found.unreadable:
        parts += [_section("unreadable", signs), _list(found.unreadable, QUIET, signs)]
    parts += [_section("next", signs), _Commands(found.next, signs)]
    return Group(*parts)


def render_proof(proof: Proof, signs: Glyphs = UNICODE, *, everything: bool = False) -> Text:
    """The answer of --verify: the verdict, then each violation, doubt and note on a line."""
    text = Text()
    sign = {"proved": signs.ok, "violated": signs.bad, "unproved": "?"}[proof.verdict]
    text.append(f"{sign} {proof.verdict}", style=f"bold {_VERDICTS[proof.verdict]}")
    expected = f"exactly {proof.microbatches}" if proof.microbatches else "all their"
    count = f"{proof.exact:,}/{proof.steps:,} committed steps had {expected} microbatches"
    text.append(f"  {count}, each once")
    limit = None if everything else FINDINGS
    for violation in proof.violations[:limit]:
        text.append(f"\n  {violation.invariant} violated: ", style=BAD)
        text.append_text(words(violation.what, "", signs))
    for doubt in proof.unproved[:limit]:
        text.append("\n  not proved: ", style=REDUCED)
        text.append_text(words(doubt, "", signs))
    for note in proof.notes[:limit]:
        text.append("\n  note: ", style=QUIET)
        text.append_text(words(note, QUIET, signs))
    hidden = max(0, len(proof.violations) - FINDINGS) + max(0, len(proof.unproved) - FINDINGS)
    if hidden and not everything:
        text.append(f"\n  and {hidden} more (--all)", style=QUIET)
    return text


# --------------------------------------------------------------------------------- the sections


def _section(name: str, signs: Glyphs) -> RenderableType:
    line = "─" if signs is UNICODE else "-"
    rule = Rule(Text(name, style=QUIET), characters=line, align="left", style=QUIET)
    return Padding(rule, (1, 0, 0, 0))


def _list(lines: Sequence[str], style: str, signs: Glyphs) -> Text:
    return Text("\n").join(Text("  ").append_text(words(line, style, signs)) for line in lines)


@dataclass(frozen=True, slots=True)
class _Commands:
    """Lines to copy: one that is wider than the page goes on beyond it, and is not broken."""

    lines: Sequence[str]
    signs: Glyphs

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in self.lines:
            yield Segment(f"  {line if self.signs is UNICODE else ascii_only(line)}")
            yield Segment.line()


def _facts(pairs: Sequence[tuple[str, Text]]) -> Table:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(style=QUIET, no_wrap=True, min_width=12)
    grid.add_column(overflow="fold")
    for name, value in pairs:
        grid.add_row(f"  {name}", value)
    return grid


def _title(found: Postmortem, signs: Glyphs, utc_offset_s: int) -> Text:
    text = Text("recoverrun postmortem  ", style=QUIET)
    text.append_text(words(found.title, STRONG, signs))
    text.append("  ").append_text(words(found.run_dir, QUIET, signs))
    shape = plural(found.world_size, "rank")
    if found.replicas:
        shape = f"{len(found.replicas)} {signs.times} {plural(len(found.replicas[0]), 'rank')}"
    if found.began:
        began = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(found.began + utc_offset_s))
        parts = [f"{began} {zone(utc_offset_s)}", f"lasted {span(found.wall_s)}", shape]
        parts.append(plural(len(found.nodes) + len(found.missing_nodes), "node"))
        text.append("\n").append_text(words(f" {signs.dot} ".join(parts), QUIET, signs))
    return text


def zone(utc_offset_s: int) -> str:
    if not utc_offset_s:
        return "UTC"
    sign = "+" if utc_offset_s > 0 else "-"
    minutes = abs(utc_offset_s) // 60
    return f"UTC{sign}{minutes // 60:02d}:{minutes % 60:02d}"


def _verdict(found: Postmortem, signs: Glyphs) -> Table:
    pairs = [("outcome", words(verdict(found), f"bold {_TONES[found.outcome]}", signs))]
    if found.exit_code and found.end_reason:
        pairs.append(("reason", words(found.end_reason, "", signs)))
    proof = found.proof
    if proof.steps:
        line = words(invariant_line(found), "", signs)
        sign = {"proved": signs.ok, "violated": signs.bad, "unproved": ""}[proof.verdict]
        line.append(f" {sign}", style=_VERDICTS[proof.verdict])
        pairs.append(("invariant", line))
    findings = [(f"{one.invariant} violated: {one.what}", BAD) for one in proof.violations]
    findings += [(f"not proved: {doubt}", REDUCED) for doubt in proof.unproved]
    findings += [(note, QUIET) for note in proof.notes]
    pairs += [("", words(text, style, signs)) for text, style in findings[:FINDINGS]]
    if found.promise:
        line = words(found.promise, "", signs)
        line.append_text(words(f": {found.promise_reason}", QUIET, signs))
        pairs.append(("promise", line))
    if found.weakened:
        text = f"step {found.weakened_at}: {found.weakened}"
        pairs.append(("", words(text, REDUCED, signs)))
    if found.steered:
        pairs.append(("", words(f"step {found.steered_at}: {found.steered}", REDUCED, signs)))
    if found.losses:
        pairs.append(("cost", words(cost(found), "", signs)))
    for number, slow in enumerate(found.slow[:FINDINGS]):
        pairs.append(("" if number else "slow", words(slow.words, REDUCED, signs)))
    if found.inject:
        pairs.append(("injected", words(found.inject, "", signs)))
    if found.missing_nodes:
        line = words(f"no journal of {', '.join(found.missing_nodes)}", REDUCED, signs)
        pairs.append(("missing", line))
    if found.earlier_runs:
        line = Text(f"{plural(found.earlier_runs, 'run')} in this directory before it", style=QUIET)
        pairs.append(("not told", line))
    if found.unknown_events:
        line = words(f"records of a newer version: {', '.join(found.unknown_events)}", QUIET, signs)
        pairs.append(("unknown", line))
    return _facts(pairs)


# ----------------------------------------------------------------------------------- the losses


def _losses(found: Postmortem, signs: Glyphs, utc_offset_s: int, everything: bool) -> Group:
    shown = found.losses if everything else found.losses[:LOSSES]
    parts: list[RenderableType] = [_loss_table(shown, signs, utc_offset_s)]
    if len(shown) < len(found.losses):
        rest = len(found.losses) - len(shown)
        parts.append(Text(f"  {signs.ellipsis} and {rest} more (--all)", style=QUIET))
    return Group(*parts)


def _loss_table(shown: Sequence[LossReport], signs: Glyphs, utc_offset_s: int) -> RenderableType:
    heads = LOSS_HEADS
    wide = [len(head) for head in heads]
    rows = [loss_cells(loss, utc_offset_s) for loss in shown]
    for row in rows:
        wide = [max(one, len(cell)) for one, cell in zip(wide, row, strict=True)]
    wide[5] = min(wide[5], 12)
    lines: list[RenderableType] = [_row(heads, wide, QUIET, signs)]
    before: LossReport | None = None
    for loss, row in zip(shown, rows, strict=True):
        style = "" if loss.total_ms >= 0 else BAD
        lines.append(_row(row, wide, style, signs))
        same = before is not None and before.cause.recovery is loss.cause.recovery
        for text in loss_details(loss, same=same):
            lines.append(Padding(words(text, QUIET, signs), (0, 0, 0, wide[0] + 4)))
        before = loss
    return Group(*lines)


def _row(cells_: Sequence[str], wide: Sequence[int], style: str, signs: Glyphs) -> Text:
    line = "  " + _aligned([sanitize(cell) for cell in cells_], wide)
    return Text(line if signs is UNICODE else ascii_only(line), style=style)


def _aligned(row: Sequence[str], wide: Sequence[int]) -> str:
    right = {0, 6, 7}
    cut = [
        cell if len(cell) <= width else cell[: width - 1] + "~"
        for cell, width in zip(row, wide, strict=True)
    ]
    padded = [
        cell.rjust(width) if place in right else cell.ljust(width)
        for place, (cell, width) in enumerate(zip(cut, wide, strict=True))
    ]
    return "  ".join(padded).rstrip()


def loss_cells(loss: LossReport, utc_offset_s: int) -> tuple[str, ...]:
    """One lost replica, below `LOSS_HEADS`."""
    root = loss.cause.root
    made_good = span(loss.total_ms / 1000) if loss.total_ms >= 0 else "not on record"
    if loss.shared > 1:
        made_good += f" ({loss.shared} at once)"
    return (
        str(loss.number),
        time_of_day(loss.cause.loss.ts, utc_offset_s),
        str(loss.slot),
        f"r{root.rank}",
        root.cause,
        f"r{ranges(root.victims)}" if root.victims else "nobody",
        str(loss.step) if loss.step >= 0 else "?",
        str(loss.redone) if loss.total_ms >= 0 else "?",
        made_good,
    )


def loss_details(loss: LossReport, *, same: bool) -> list[str]:
    """`same`: the loss before it was survived by the same recovery, whose times stand there."""
    lines = []
    if loss.parts_ms and not same:
        lines.append(phases(loss))
    if loss.moved:
        moves = (f"replica {m.replica} took {identity_ranges(m.identities)}" for m in loss.moved)
        again = f"; redone {identity_ranges(loss.again)}" if loss.again else ""
        lines.append(f"microbatches: {', '.join(moves)}{again}")
    return lines


# ------------------------------------------------------------------------------- the root cause


def roots(found: Postmortem, everything: bool) -> list[tuple[str, RootCause]]:
    """The cause of the run's failure; of a run that did not fail, the root of each loss."""
    if found.exit_code and found.root is not None:
        return [("root cause", found.root)]
    shown = found.losses if everything else found.losses[:ROOTS]
    if len(found.losses) == 1:
        return [("root cause", found.losses[0].cause.root)]
    blocks = [(f"root cause of loss {loss.number}", loss.cause.root) for loss in shown]
    if not found.losses and found.root is not None and found.exit_code is None:
        blocks.append(("root cause", found.root))
    return blocks


def _root(found: Postmortem, root: RootCause, signs: Glyphs) -> Table:
    where = [f"node {root.node}"] if root.node not in ("", "?") else []
    slot = next((s for s, members in enumerate(found.replicas) if root.rank in members), -1)
    where += [f"replica {slot}"] if slot >= 0 else []
    where += [f"pid {root.pid}"] if root.pid > 0 else []
    place = f"({', '.join(where)})" if where and root.rank >= 0 else ""
    first = words(root.what, BAD if found.exit_code else "", signs)
    first.append(" ").append_text(words(place, QUIET, signs))
    sure = {"proved": GOOD, "likely": REDUCED, "unknown": REDUCED}[root.confidence]
    why = words(root.why_first, "", signs).append(f" [{root.confidence}]", style=sure)
    label = "cause unknown" if root.confidence == "unknown" else "why first"
    pairs = [("what", first), (label, why)]
    if also(root):
        pairs.append(("also", words(also(root), "", signs)))
    folded = f"; folded: {plural(root.cascades, 'error')} that came of it"
    with_it = company(root) + (folded if root.cascades else "")
    pairs.append(("with it", words(with_it, "", signs)))
    if evidence(root):
        pairs.append(("evidence", words(evidence(root), QUIET, signs)))
    return _facts(pairs)


# --------------------------------------------------------------------------------- the timeline


def _timeline(found: Postmortem, signs: Glyphs, columns: int, utc_offset_s: int) -> Text:
    label = max(len(f"replica {lane.slot}") for lane in found.lanes) + 3
    width = max(20, columns - label - 2)
    troubled = [lane for lane in found.lanes if len(lane.changes) > 1]
    rest = [lane for lane in found.lanes if len(lane.changes) == 1]
    shown = sorted((troubled + rest)[:LANES], key=lambda lane: lane.slot)
    begin = time_of_day(found.began, utc_offset_s)
    end = time_of_day(found.latest, utc_offset_s)
    text = Text(" " * label + begin + " " * (width - len(begin) - len(end)) + end, style=QUIET)
    looks: dict[State, tuple[str, str]] = {
        "alive": (signs.line, GOOD),
        "lost": (signs.bad, BAD),
        "gone": (signs.dot, QUIET),
        "absent": (" ", QUIET),
    }
    for lane in shown:
        text.append("\n" + f"  replica {lane.slot}".ljust(label), style=QUIET)
        for state in cells(lane, began=found.began, latest=found.latest, columns=width):
            sign, style = looks[state]
            text.append(sign, style=style)
    if len(shown) < len(found.lanes):
        more = plural(len(found.lanes) - len(shown), "replica")
        text.append(f"\n  {signs.ellipsis} and {more} without a loss", style=QUIET)
    return text
