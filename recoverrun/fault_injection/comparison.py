"""Two runs of one script side by side, as renderables: pure functions of what the trials found."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from recoverrun.fault_injection.trial import Trial
from recoverrun.fault_injection.verdict import Point
from recoverrun.reports.commits import Commit
from recoverrun.reports.happenings import Recovery
from recoverrun.reports.history import History
from recoverrun.reports.plot import plot
from recoverrun.reports.recoveries import PARTS
from recoverrun.reports.returns import ReturnWay
from recoverrun.text import Glyphs, plural, ranks, span

BEFORE, AFTER = 1, 2
"""Steps that are shown around each loss; of a return the one before, too."""

ROWS = 8
"""Height of the loss curves in lines."""


def quotas(commit: Commit | None, history: History, glyphs: Glyphs) -> str:
    """The microbatches of each replica in slot order, a cross where it took no part."""
    if commit is None:
        return ""
    slots = history.slots or tuple(sorted(commit.quota))
    return f" {glyphs.dot} ".join(str(commit.quota.get(slot, glyphs.bad)) for slot in slots)


def account(commit: Commit | None, whole: int, glyphs: Glyphs) -> Text:
    """Microbatches of a step against B."""
    if commit is None:
        return Text(f"-/{whole}", style="red")
    right = commit.microbatches == commit.total == whole
    mark, style = (glyphs.ok, "green") if right else (glyphs.bad, "red")
    return Text(f"{commit.microbatches}/{whole} {mark}", style=style)


def shown_steps(history: History) -> tuple[int, ...]:
    """The steps around each loss and return, and the last one."""
    steps = sorted({commit.step for commit in history.commits})
    chosen: set[int] = set(steps[-1:])
    for recovery in history.recoveries:
        around = range(recovery.step - BEFORE, recovery.step + AFTER + 1)
        chosen |= set(around) & set(steps)
    for way in history.returns.backs:
        chosen |= {way.step - BEFORE, way.step} & set(steps)
    return tuple(sorted(chosen))


def step_table(reference: Trial, faulted: Trial, glyphs: Glyphs) -> Table:
    """Quotas and microbatches of both runs around each loss."""
    table = _table("step", "failure-free", "", "", "with losses", "", "")
    calm = {commit.step: commit for commit in reference.history.commits}
    stormy = {commit.step: commit for commit in faulted.history.commits}
    whole = faulted.proof.microbatches
    previous = -1
    for step in shown_steps(faulted.history):
        if 0 <= previous < step - 1:
            table.add_row(glyphs.ellipsis)
        previous = step
        one, two = calm.get(step), stormy.get(step)
        table.add_row(
            str(step),
            quotas(one, reference.history, glyphs),
            account(one, whole, glyphs),
            span(one.ms / 1000) if one else "",
            quotas(two, faulted.history, glyphs),
            account(two, whole, glyphs),
            span(two.ms / 1000) if two else "",
        )
    return table


def back_table(reference: Trial, faulted: Trial, glyphs: Glyphs) -> Table:
    """The losses of both runs around each way back to a snapshot, as their logs have them."""
    table = _table("step", "failure-free", "with losses", "")
    last = max(reference.losses, default=0)
    shown = {last} | {
        step
        for way in faulted.ways_back
        for step in range(way.step - BEFORE, way.step + max(0, way.again) + AFTER + 1)
    }
    previous = -1
    for step in sorted(shown & reference.losses.keys()):
        if 0 <= previous < step - 1:
            table.add_row(glyphs.ellipsis)
        previous = step
        calm, stormy = reference.losses[step], faulted.losses.get(step)
        same = stormy == calm
        mark, style = (glyphs.ok, "green") if same else (glyphs.bad, "red")
        told = glyphs.dash if stormy is None else f"{stormy:g}"
        again = any(way.step <= step < way.step + way.again for way in faulted.ways_back)
        note = " done again" if again else ""
        table.add_row(str(step), f"{calm:g}", told, Text(f"{mark}{note}", style=style))
    return table


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for heading in headings:
        table.add_column(heading, no_wrap=True)
    return table


def happened(recovery: Recovery, glyphs: Glyphs) -> str:
    """One recovery in a line: who was lost, what was computed again, what it cost."""
    slots = " and ".join(str(slot) for slot in recovery.slots)
    noun = "replica" if len(recovery.slots) == 1 else "replicas"
    lost = f"step {recovery.step}: {noun} {slots} lost with {ranks(recovery.root_ranks)}"
    again = f"{plural(recovery.redone, 'microbatch')} redone"
    return f"{lost} {glyphs.arrow} {again}, +{span(recovery.total_ms / 1000)}"


def phase_table(recoveries: Sequence[Recovery], glyphs: Glyphs) -> Table:
    """Milliseconds of each phase of each recovery."""
    table = _table("recovery in ms", *PARTS, "total")
    for column in table.columns[1:]:
        column.justify = "right"
    for recovery in recoveries:
        slots = ", ".join(str(slot) for slot in recovery.slots)
        parts = [f"{ms:.1f}" for _, ms in recovery.parts_ms]
        name = f"step {recovery.step} {glyphs.dot} replica {slots}"
        table.add_row(name, *parts, f"{recovery.total_ms:.1f}")
    return table


def return_table(ways: Sequence[ReturnWay], glyphs: Glyphs) -> Table:
    """Milliseconds of each part of each way back, and what was given to the newcomers."""
    names = list(dict.fromkeys(name for way in ways for name, _ in way.parts_ms))
    table = _table("return in ms", *(name.partition(" ")[0] for name in names), "MB")
    for column in table.columns[1:]:
        column.justify = "right"
    for way in ways:
        known = dict(way.parts_ms)
        parts = [f"{known[name]:.0f}" if name in known else glyphs.dash for name in names]
        name = f"step {way.step} {glyphs.dot} replica {way.slot}"
        table.add_row(name, *parts, f"{way.parts.size / 1e6:.1f}")
    return table


def verdict_table(points: Sequence[Point], glyphs: Glyphs) -> Table:
    """The points of a verdict, a mark before each."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1, 0, 0))
    for point in points:
        mark, style = {
            True: (glyphs.ok, "green"),
            False: (glyphs.bad, "bold red"),
            None: (glyphs.warn, "yellow"),
        }[point.held]
        table.add_row(Text(mark, style=style), Text(point.text, style=style))
    return table


def loss_picture(reference: Trial, faulted: Trial, *, columns: int, ascii_only: bool) -> Text:
    """Both loss curves in one picture: where they overlap there is one colour."""
    runs = (reference, faulted)
    series = [sorted(trial.losses.items()) for trial in runs]
    if not all(series):
        return Text("no loss curves: a log has no lines such as `step 12 loss 2.34`", style="dim")
    picture = plot(series, columns=columns, rows=ROWS, ascii_only=ascii_only)
    text = Text()
    # The frame comes from the plain lines; only the cells inside it get a colour.
    for place, line in enumerate(picture.lines(ascii_only=ascii_only)):
        if place >= len(picture.rows):
            text.append(line + "\n", style="dim")
            continue
        inside = "".join(cell.text for cell in picture.rows[place])
        text.append(line[: len(line) - len(inside.rstrip())], style="dim")
        for cell in picture.rows[place]:
            text.append(cell.text, style=_STYLES.get(cell.owners, ""))
        text.append("\n")
    text.append("          loss by step: ", style="dim")
    text.append("both runs", style=_STYLES[frozenset({0, 1})])
    for place, name in enumerate(("failure-free only", "with losses only")):
        text.append("  ")
        text.append(name, style=_STYLES[frozenset({place})])
    if faulted.history.losses:
        note = "after a loss the log averages over the survivors' own microbatches"
        text.append(f"\n          {note}", style="dim")
    return text


_STYLES = {frozenset({0, 1}): "green", frozenset({0}): "cyan", frozenset({1}): "bold red"}
