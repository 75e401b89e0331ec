"""Committed steps, as the journal tells them."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from rendezvous.journal.reader import Entry
from rendezvous.protocol.views import Identity


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    ts: float
    seq: int
    node: str
    step: int
    generation: int
    quota: Mapping[int, int]
    done: Mapping[int, tuple[Identity, ...]] | None  # None: as in the home layout
    redone: int  # of those that moved: only because a replica was lost in this step
    microbatches: int
    total: int
    ms: float
    inferred: tuple[Identity, ...]  # said by nobody: their replica did not live to say so
    unseen: tuple[int, ...]  # live ranks that had not told of this step
    attempt: int
    part: bool = False  # told by nodes that did not coordinate, each of its own replicas
    contradiction: str = ""  # between the records of several nodes
    raw: tuple[object, object] = field(default=(None, None), repr=False, compare=False)
    """`quota` and `done` as they were read: most steps share them with the one before."""

    @property
    def moved(self) -> int:
        """Microbatches that another replica than their own computed."""
        return sum(home != slot for slot, ids in (self.done or {}).items() for home, _ in ids)

    @property
    def taken_over(self) -> int:
        """The number of those that moved as planned, because a replica had been lost before."""
        return max(0, self.moved - max(0, self.redone))


Account = int | frozenset[Identity]
"""What one replica put into a step: the first n of its own microbatches, or which ones."""


class Claims:
    """The computed identities by replica, of one record: `done`, or else the first n of each home
    slot.

    Nothing here takes longer because a number is large: only where more identities are written out.
    """

    def __init__(self, commit: Commit) -> None:
        self._done = commit.done
        self._first = dict(commit.quota) if commit.done is None else {}
        self._told = Counter(identity for done in (commit.done or {}).values() for identity in done)

    @property
    def total(self) -> int:
        """Identities, each as often as it is claimed."""
        return sum(max(0, count) for count in self._first.values()) + self._told.total()

    def count(self, slot: int) -> int:
        """The number of microbatches that replica `slot` claims."""
        done = self._done
        return max(0, self._first.get(slot, 0)) if done is None else len(done.get(slot, ()))

    def moved(self) -> dict[int, tuple[Identity, ...]]:
        """Identities of other slots, by the replica that computed them."""
        found = {
            replica: tuple(identity for identity in done if identity[0] != replica)
            for replica, done in (self._done or {}).items()
        }
        return {replica: done for replica, done in found.items() if done}

    def accounts(self) -> dict[int, Account]:
        """The accounts of all replicas that claim anything."""
        found: dict[int, Account] = {slot: n for slot, n in self._first.items() if n > 0}
        for slot, done in (self._done or {}).items():
            own = frozenset(done)
            first = all(home == slot and 0 <= index < len(own) for home, index in own)
            if own:
                found[slot] = len(own) if first else own
        return found

    def own_counts(self) -> dict[int, int] | None:
        """The number of microbatches by replica; None unless each claims its first ones alone."""
        found = self.accounts()
        counts = {slot: own for slot, own in found.items() if isinstance(own, int)}
        return counts if len(counts) == len(found) else None

    def twice(self) -> list[Identity]:
        """Identities that are claimed more than once."""
        return sorted(identity for identity, count in self._told.items() if count > 1)

    def missing(self, slots: int, microbatches: int, most: int) -> tuple[list[Identity], int]:
        """Identities of the home layout that nobody claims: the first `most`, and how many."""
        known = sum(
            min(max(0, count), microbatches)
            for slot, count in self._first.items()
            if 0 <= slot < slots
        )
        known += sum(1 for identity in self._told if _is_of(identity, slots, microbatches))
        count = slots * microbatches - known
        shown = islice(self._unclaimed(slots, microbatches), min(most, count))
        return list(shown), count

    def _unclaimed(self, slots: int, microbatches: int) -> Iterator[Identity]:
        for slot in range(slots):
            for index in range(max(0, self._first.get(slot, 0)), microbatches):
                if (slot, index) not in self._told:
                    yield slot, index

    def foreign(self, slots: int, microbatches: int, most: int) -> tuple[list[Identity], int]:
        """Claimed identities that the home layout does not have: the first `most`, how many."""
        told = sorted(one for one in self._told if not _is_of(one, slots, microbatches))
        shown, count = told[:most], len(told)
        for slot, claimed in sorted(self._first.items()):
            beyond = range(microbatches if 0 <= slot < slots else 0, claimed)
            shown += [(slot, index) for index in beyond[: max(0, most - len(shown))]]
            count += len(beyond)
        return shown, count


def _is_of(identity: Identity, slots: int, microbatches: int) -> bool:
    """True if the home layout has this identity."""
    return 0 <= identity[0] < slots and 0 <= identity[1] < microbatches


def alike(one: Commit, two: Commit) -> bool:
    """True if both were read from the very same account of who computed what."""
    shared = one.raw[0] is two.raw[0] and one.raw[1] is two.raw[1] and one.raw[0] is not None
    return shared and (one.part, one.total) == (two.part, two.total)


def commit_of(entry: Entry, attempt: int, before: Sequence[Commit] = ()) -> Commit:
    """A step.commit record as a value; fields that are not numbers read as -1.

    `before` is the step before it, if there is one: what both share is read once.
    """
    quota = entry.fields.get("quota")
    done = entry.fields.get("done")
    shared = [one for one in before if one.raw[0] is quota is not None and one.raw[1] is done]
    return Commit(
        ts=entry.ts,
        seq=entry.seq,
        node=entry.node,
        step=entry.integer("step"),
        generation=entry.integer("generation"),
        quota=shared[0].quota if shared else _quota(quota),
        done=shared[0].done if shared else None if done is None else _done(done),
        raw=(quota, done),
        redone=entry.integer("redone", 0),
        microbatches=entry.integer("microbatches"),
        total=entry.integer("total"),
        ms=entry.number("ms"),
        inferred=identities_of(entry.fields.get("inferred")),
        unseen=entry.integers("unseen"),
        attempt=attempt,
        part=entry.event == "step.part",
    )


def _quota(raw: object) -> dict[int, int]:
    pairs = raw.items() if isinstance(raw, dict) else ()
    return {
        int(slot): max(-1, count)
        for slot, count in pairs
        if slot.isdecimal() and isinstance(count, int)
    }


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
    return elsewhere and Claims(one).accounts() == Claims(two).accounts()
