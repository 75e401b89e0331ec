"""Recoveries as the journal tells them, and what each meant in one sentence.

The sentence is the same on the console, in `status` and by `postmortem`.
"""

from collections.abc import Iterable

from recoverrun.reports.commits import identities_of
from recoverrun.reports.happenings import Recovery
from recoverrun.text import plural, span
from rendezvous.journal.reader import Entry
from rendezvous.protocol.records import PART

PARTS = ("detect", "agree", "rebuild", "redo", "reduce", "vote")
"""Phases of a recovery, as the fields `<part>_ms` of recovery.done name them."""


def recovery_in(entry: Entry, attempt: int = 0) -> Recovery:
    """A recovery.done record as a value."""
    again = identities_of(entry.fields.get("redone"))
    return Recovery(
        ts=entry.ts,
        generation=entry.integer("generation"),
        slots=entry.integers("slots"),
        root_ranks=entry.integers("root_ranks"),
        step=entry.integer("step"),
        redone=entry.integer("redone", len(again)),
        identities=again,
        parts_ms=_parts(entry),
        total_ms=entry.number("total_ms"),
        attempt=attempt,
        total=max(0, entry.integer("total", 0)),
        live=max(0, entry.integer("live", 0)),
        of=max(0, entry.integer("of", 0)),
        part=entry.flag(PART),
    )


def _parts(entry: Entry) -> tuple[tuple[str, float], ...]:
    """Milliseconds of each part, which together are at most the whole: each is told by the rank on
    which it took longest, and where ranks were at several parts at once, each has its share.
    """
    told = [max(0.0, entry.number(f"{part}_ms")) for part in PARTS]
    whole, total = sum(told), max(0.0, entry.number("total_ms"))
    scale = min(1.0, total / whole) if whole else 1.0
    return tuple((part, round(ms * scale, 3)) for part, ms in zip(PARTS, told, strict=True))


def step_complete(recovery: Recovery) -> str:
    """The struck step is whole: what was redone, the time that it cost, on how many we go on."""
    whole = f", {recovery.total}/{plural(recovery.total, 'microbatch')}" if recovery.total else ""
    redone = f"{recovery.redone:,} redone" if recovery.redone > 0 else "nothing redone"
    step = f"step {recovery.step} complete{whole} ({redone}, +{span(recovery.total_ms / 1000)})"
    if not recovery.of:
        return step
    return f"{step} · continuing on {recovery.live} of {plural(recovery.of, 'replica')}"


def distinct(recoveries: Iterable[Recovery]) -> tuple[Recovery, ...]:
    """Each recovery once: several nodes may have told it."""
    first: dict[tuple[int, int], Recovery] = {}
    for one in recoveries:
        first.setdefault((one.attempt, one.generation), one)
    return tuple(first.values())
