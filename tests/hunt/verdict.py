"""The comparison of two runs of one script, by the scripts' own logs alone.

Two ranks are held to the bit, three to rounding: an order of sums is nobody's promise. After a loss
the run is whole, if its promise of exact samples stands and nothing is different, or told, if it
said that something may be. All else is a finding.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rendezvous.coordinator.guarantees import WITHOUT_SURVIVORS
from tests.hunt.books import Books, Key, Rank, Work

NEAR, FAR = 1e-12, 1e-9
"""Without a loss and three ranks; after a loss: relative to the largest weight."""

NUMBER = re.compile(r"-?\d+\.\d+(?:e[-+]?\d+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The end of a run of the program under test, as it says itself."""

    code: int
    promise: str = ""
    reason: str = ""
    weakened: str = ""
    steered: str = ""  # what follows from numbers over the survivors alone
    struck: bool = False
    refused: str = ""  # why nobody comes back
    hung: bool = False
    tail: Sequence[str] = ()

    @property
    def crashed(self) -> bool:
        """True if it ended by an error that nobody meant."""
        meant = sum("RanksDiffer: " in line for line in self.tail)
        return bool(self.code) and sum("Traceback" in line for line in self.tail) > meant


@dataclass(frozen=True, slots=True)
class Verdict:
    kind: str  # "whole", "told" or "finding"
    reason: str = ""
    details: list[str] = field(default_factory=list)


def without_loss(reference: Books, found: Books, ended: Ended, world: int) -> Verdict:
    """A run in which nobody died."""
    if ended.hung:
        return Verdict("finding", "without a loss it hangs")
    if ended.code:
        return Verdict("finding", f"without a loss it ends with {ended.code}", list(ended.tail))
    problems = list(_unlike(reference, found, bits=world == 2))
    if problems:
        return Verdict("finding", f"without a loss {problems[0]}", problems)
    return Verdict("whole", ended.promise)


def with_loss(
    reference: Books,
    found: Books,
    ended: Ended,
    world: int,
    *,
    poisonous: bool = False,
    returns: bool = False,
) -> Verdict:
    """A run in which one rank was killed; `poisonous`: so is whoever executes its work again;
    `returns`: the others waited for its new process, which is a rank like any other at the end.
    """
    if not ended.struck:
        return Verdict("told", "never struck")
    if ended.hung:
        return Verdict("finding", "it hangs after a loss", list(ended.tail))
    before = list(_unlike_before(reference, found, bits=world == 2, returns=returns))
    if before:
        return Verdict("finding", f"before the loss {before[0]}", before)
    if poisonous and ended.promise not in WITHOUT_SURVIVORS and not found.finished:
        return Verdict("finding", f"one microbatch ends them all, {ended.code}", list(ended.tail))
    if ended.promise in WITHOUT_SURVIVORS:  # the others end by whatever torch says then
        return Verdict("told", f"{ended.promise}: {ended.reason}")
    if ended.promise != "exact-samples":
        return _told(ended, f"{ended.promise or 'no promise'}: {ended.reason}")
    if ended.weakened:
        return _told(ended, f"taken back: {ended.weakened}")
    if ended.code:
        return _told(ended, f"exit {ended.code}: {_last(ended.tail)}")
    problems = list(_incomplete(reference, found))
    missing = sorted(reference.by_rank.keys() - found.finished.keys()) if returns else []
    if missing and not ended.refused:
        problems.append(f"ranks {missing} stay away")
    if problems and ended.steered:
        return Verdict("told", f"steered: {ended.steered}")
    if problems:
        return Verdict("finding", f"silently {problems[0]}", [*problems, *ended.tail * returns])
    return Verdict("whole", ended.refused if missing else "")


def _told(ended: Ended, reason: str) -> Verdict:
    if ended.crashed:
        return Verdict("finding", f"a crash after a loss: {_last(ended.tail)}", list(ended.tail))
    return Verdict("told", reason)


def _last(tail: Sequence[str]) -> str:
    return next((line for line in reversed(tail) if line.strip()), "")


def _last_common(found: Books) -> int:
    """The first step of which a killed rank has not written that it is over."""
    return min((len(one.losses) for one in found.first.values()), default=0)


def _unlike_before(reference: Books, found: Books, *, bits: bool, returns: bool) -> Iterator[str]:
    """Differences up to the step of the loss, which may be unfinished."""
    ours, theirs = found.first, reference.by_rank
    if len(ours if returns else found.ranks) != len(theirs):
        yield f"{len(found.ranks)} processes began"
    for number in sorted(theirs.keys() & ours.keys()):
        yield from _unlike_rank(theirs[number], ours[number], bits=bits, until=_last_common(found))


def _unlike(reference: Books, found: Books, *, bits: bool) -> Iterator[str]:
    """Differences from the beginning to the end."""
    ours, theirs = found.by_rank, reference.by_rank
    if len(found.ranks) != len(theirs):
        yield f"{len(found.ranks)} processes began"
    for number in sorted(theirs.keys() & ours.keys()):
        yield from _unlike_rank(theirs[number], ours[number], bits=bits, until=None)
    if found.strangers:
        yield f"a process that is no rank wrote {found.strangers[0]}"
    if found.others:
        yield f"rank {found.others[0][1][0]}'s work is done by another one"
    for number in sorted(rank.rank for rank in found.ranks.values() if rank.again):
        yield f"rank {number}'s own work is done once more"
    if sorted(ours) != sorted(theirs):
        yield f"ranks {sorted(ours)} wrote something"
    yield from _unlike_numbers(reference.printed, found.printed, bits=bits)


def _unlike_rank(theirs: Rank, ours: Rank, *, bits: bool, until: int | None) -> Iterator[str]:
    last = math.inf if until is None else until
    expected = [one for one in theirs.own if one[0][1] < last]
    done = [one for one in ours.own if one[0][1] < last]
    if expected != done:
        pairs = zip([*expected, None], [*done, None], strict=False)
        first = next(pair for pair in pairs if pair[0] != pair[1])
        yield f"rank {ours.rank} has other samples or draws: {first[1]} instead of {first[0]}"
    for (step, loss), (_, own) in zip(theirs.losses, ours.losses, strict=False):
        if step < last and not (loss == own if bits else _near(loss, own, NEAR)):
            yield f"rank {ours.rank}'s loss in step {step} is {own!r} instead of {loss!r}"
            return
    if until is None and (worst := apart(theirs.weights, ours.weights)) > (0 if bits else NEAR):
        yield f"rank {ours.rank}'s weights are {worst:.1e} apart"


def _unlike_numbers(theirs: list[str], ours: list[str], *, bits: bool) -> Iterator[str]:
    if bits and theirs != ours or len(theirs) != len(ours):
        pairs = zip([*theirs, ""], [*ours, ""], strict=False)
        first = next(pair for pair in pairs if pair[0] != pair[1])
        yield f"it prints {first[1]!r} instead of {first[0]!r}"
        return
    for there, here in zip(theirs, ours, strict=True):
        expected, found = ([float(word) for word in NUMBER.findall(one)] for one in (there, here))
        alike = len(expected) == len(found) and all(
            _near(one, other, 100 * NEAR) for one, other in zip(expected, found, strict=True)
        )
        if not alike or NUMBER.sub("", there) != NUMBER.sub("", here):
            yield f"it prints {here!r} instead of {there!r}"
            return


def _incomplete(reference: Books, found: Books) -> Iterator[str]:
    """The differences at the end of a run that promised that there would be none."""
    finished = found.finished
    if not finished:
        yield "no survivor came to its end"
    for number, rank in sorted(finished.items()):
        worst = apart(reference.by_rank[number].weights, rank.weights)
        if worst > FAR:
            yield f"rank {number}'s weights are {worst:.1e} apart"
        if rank.own != _own(reference.by_rank[number], rank, found.first[number]):
            yield f"rank {number} had other samples or draws of its own"
    work, expected = found.work, reference.work
    for key in sorted(expected):
        [right] = expected[key]
        if not work.get(key, {}).get(right):
            had = "nothing" if key not in work else f"{list(work[key])}"
            yield f"microbatch {key} is {had} instead of {right}"
            return


def _own(theirs: Rank, rank: Rank, first: Rank) -> list[tuple[Key, Work]]:
    """The microbatches that this process of a rank has to execute: a later one all from a certain
    one on, the first of a reduction.
    """
    if rank is first:
        return theirs.own
    begins = rank.own[0][0] if rank.own else (rank.rank, -1, 0)
    return [one for one in theirs.own if one[0] >= begins]


def apart(theirs: Sequence[float], ours: Sequence[float]) -> float:
    """The largest difference, relative to the largest value."""
    if len(theirs) != len(ours):
        return math.inf
    scale = max((abs(one) for one in theirs), default=1.0)
    worst = max((abs(a - b) for a, b in zip(theirs, ours, strict=True)), default=0.0)
    return math.inf if math.isnan(worst) else worst / scale


def _near(one: float, other: float, within: float) -> bool:
    return abs(one - other) <= within * max(abs(one), abs(other), 1e-3)
