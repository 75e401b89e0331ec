"""Committed steps, as the journal tells them."""

from collections.abc import Mapping
from dataclasses import dataclass

from rendezvous.journal.reader import Entry
from rendezvous.protocol.messages import Identity

MOST = 1_000_000
"""Microbatches of one replica in one step that are believed; more is not a count but damage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    ts: float
    seq: int
    node: str
    step: int
    generation: int
    quota: Mapping[int, int]
    done: Mapping[int, tuple[Identity, ...]] | None  # None: as in the home layout
    redone: int
    microbatches: int
    total: int
    ms: float
    inferred: tuple[Identity, ...]  # said by nobody: their replica did not live to say so
    unseen: tuple[int, ...]  # live ranks that had not told of this step
    attempt: int


def claimed(commit: Commit) -> dict[int, tuple[Identity, ...]]:
    """Who computed what, as the record says it: `done`, or the first n of each home slot."""
    if commit.done is not None:
        return dict(commit.done)
    return {
        slot: tuple((slot, index) for index in range(count))
        for slot, count in sorted(commit.quota.items())
    }


def commit_of(entry: Entry, attempt: int) -> Commit:
    """A step.commit record as a value; fields that are not numbers read as -1."""
    quota = entry.fields.get("quota")
    done = entry.fields.get("done")
    return Commit(
        ts=entry.ts,
        seq=entry.seq,
        node=entry.node,
        step=entry.integer("step"),
        generation=entry.integer("generation"),
        quota={
            int(slot): count if 0 <= count <= MOST else -1
            for slot, count in (quota.items() if isinstance(quota, dict) else ())
            if slot.isdecimal() and isinstance(count, int)
        },
        done=None if done is None else _done(done),
        redone=entry.integer("redone", 0),
        microbatches=entry.integer("microbatches"),
        total=entry.integer("total"),
        ms=entry.number("ms"),
        inferred=identities_of(entry.fields.get("inferred")),
        unseen=entry.integers("unseen"),
        attempt=attempt,
    )


def identities_of(raw: object) -> tuple[Identity, ...]:
    """[[slot, index], ...]; what is not an identity reads as (-1, -1), which is nowhere."""
    read: list[Identity] = []
    for pair in raw if isinstance(raw, list) else []:
        match pair:
            case [int(home), int(index)]:
                read.append((home, index))
            case _:
                read.append((-1, -1))
    return tuple(read)


def _done(raw: object) -> dict[int, tuple[Identity, ...]]:
    """{slot: [[slot, index], ...]} by the slot that computed them."""
    pairs = raw.items() if isinstance(raw, dict) else ()
    return {int(slot) if slot.isdecimal() else -1: identities_of(done) for slot, done in pairs}


def same_account(one: Commit, two: Commit) -> bool:
    """True if two coordinators say the same of one step."""
    place = (one.attempt, one.step, one.generation, one.total)
    elsewhere = one.node != two.node and place == (two.attempt, two.step, two.generation, two.total)
    return elsewhere and _sets(one) == _sets(two)


def _sets(commit: Commit) -> dict[int, frozenset[Identity]]:
    return {slot: frozenset(done) for slot, done in claimed(commit).items() if done}
