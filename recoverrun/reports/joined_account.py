"""One account of a run from the journals of several nodes, some of which say only what they know.

The coordinator's records come first. Where they are missing, the parts that other nodes have
written of a step are joined: what their replicas have put in, and how many microbatches the vote of
all replicas has counted. A part that contradicts the coordinator's record is a violation.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

from recoverrun.reports.commits import Commit, same_account
from rendezvous.protocol.quota import identities
from rendezvous.protocol.views import Identity

MOST = 1_000_000
"""Microbatches of one replica in one step that are written out; more is not a count but damage."""


def claimed(commit: Commit) -> dict[int, tuple[Identity, ...]]:
    """The computed identities by replica, as the record says: `done`, or the first n of each home
    slot.
    """
    if commit.done is not None:
        return dict(commit.done)
    return {
        slot: tuple((slot, index) for index in range(min(count, MOST)))
        for slot, count in sorted(commit.quota.items())
    }


def enter(commits: list[Commit], commit: Commit) -> None:
    """Put a step into the account, which is in the order of attempts and steps."""
    place = _place(commit)
    if not commits or _place(commits[-1]) < place:
        commits.append(commit)
        return
    begin, end = (find(commits, place, key=_place) for find in (bisect_left, bisect_right))
    for at in range(begin, end):
        known = commits[at]
        if known.part and commit.part:
            commits[at] = _joined(known, commit)
            return
        if known.part or commit.part:
            whole, part = (commit, known) if known.part else (known, commit)
            commits[at] = replace(whole, contradiction=_contradiction(whole, part))
            return
        if same_account(known, commit):
            # Told again by a coordinator that took over. Who saw more knows better.
            if len(commit.inferred) < len(known.inferred):
                commits[at] = commit
            return
    commits.insert(end, commit)


def _place(commit: Commit) -> tuple[int, int]:
    return commit.attempt, commit.step


def _joined(one: Commit, two: Commit) -> Commit:
    """The union of what two nodes have told of one step."""
    done: dict[int, tuple[Identity, ...]] = dict(claimed(one))
    for slot, found in claimed(two).items():
        done[slot] = tuple(sorted({*done.get(slot, ()), *found}))
    unmoved = one.done is None and two.done is None
    moved = sum(1 for slot, found in done.items() for home, _ in found if home != slot)
    return replace(
        one,
        generation=max(one.generation, two.generation),
        quota={slot: len(done[slot]) for slot in sorted(done)},
        done=None if unmoved else done,
        raw=(None, None),
        microbatches=sum(map(len, done.values())),
        redone=min(moved, one.redone + two.redone),  # Ranks of one replica say it twice.
        ms=max(one.ms, two.ms),
        contradiction=one.contradiction or _other_total(one, two),
    )


def _other_total(one: Commit, two: Commit) -> str:
    if one.total == two.total:
        return one.contradiction or two.contradiction
    return f"the vote counted {one.total} for {one.node} and {two.total} for {two.node}"


def _contradiction(whole: Commit, part: Commit) -> str:
    """The contradiction between a node's and the coordinator's record of a step, or ""."""
    if whole.total != part.total:
        return _other_total(whole, part)
    usual = whole.done is None and part.done is None
    if usual and all(whole.quota.get(slot) == count for slot, count in part.quota.items()):
        return whole.contradiction
    said, open_ = claimed(whole), set(whole.inferred)  # what nobody had told the coordinator
    for slot, found in claimed(part).items():
        odd = set(found) - set(said.get(slot, ())) - open_
        if odd:
            home, index = min(odd)
            return f"{part.node} put in {home}:{index} as replica {slot}, {whole.node} says not"
    return whole.contradiction


def part_fault(
    commit: Commit, replicas: Sequence[Sequence[int]], microbatches: int, *, counted: bool
) -> tuple[str, str]:
    """(what contradicts INV-1 in a step that only parts tell of, or "", what leaves it in doubt).

    `counted`: what no journal here tells is known to be in the vote's count.
    """
    home = set(identities(range(len(replicas)), microbatches))
    counts = Counter(identity for found in claimed(commit).values() for identity in found)
    wrong = sorted(i for i, count in counts.items() if count > 1 or i not in home)
    if wrong:
        return f"step {commit.step}: {wrong[0][0]}:{wrong[0][1]} is in two accounts or none", ""
    missing = len(home) - len(counts)
    if missing and not counted:
        return (
            "",
            f"step {commit.step}: {missing} of {len(home)} microbatches reported by no replica",
        )
    return "", ""


class Told(Protocol):
    """A fact that the coordinator records, and that nodes may know in part."""

    @property
    def part(self) -> bool: ...


T = TypeVar("T", bound=Told)


def take(known: list[T], new: T, order: Callable[[T], tuple[int, ...]]) -> None:
    """Put `new` among facts that several nodes may tell, which are the same at one `order`.

    The coordinator's own facts keep the order in which it has told them, right or wrong.
    """
    at = len(known)
    while at and (new.part or known[at - 1].part) and order(known[at - 1]) > order(new):
        at -= 1
    same = [n for n, one in enumerate(known) if order(one) == order(new)]
    if same and new.part:
        return
    if same and known[same[0]].part:
        known[same[0]] = new
    else:
        known.insert(at, new)
