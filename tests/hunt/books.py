"""The log that a script wrote, read back: nothing in here knows of the program under test."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

Key = tuple[int, int, int]
"""Rank whose microbatch it is, step, number of the microbatch in it."""

Work = tuple[str, str]
"""The samples' numbers and a checksum of what the model saw."""


@dataclass(slots=True)
class Rank:
    """One process that began as a rank."""

    rank: int
    own: list[tuple[Key, Work]] = field(default_factory=list)  # in its order
    again: list[tuple[Key, Work]] = field(default_factory=list)  # of these, executed once more
    losses: list[tuple[int, float]] = field(default_factory=list)  # by step
    weights: tuple[float, ...] = ()


@dataclass(slots=True)
class Books:
    ranks: dict[int, Rank] = field(default_factory=dict)  # by process
    others: list[tuple[int, Key, Work]] = field(default_factory=list)  # executed for a lost rank
    strangers: list[str] = field(default_factory=list)  # lines of processes that are no ranks
    printed: list[str] = field(default_factory=list)

    @property
    def by_rank(self) -> dict[int, Rank]:
        """The newest process of every rank."""
        return {one.rank: one for one in self.ranks.values()}

    @property
    def first(self) -> dict[int, Rank]:
        """The process by which every rank began."""
        return {one.rank: one for one in reversed(self.ranks.values())}

    @property
    def finished(self) -> dict[int, Rank]:
        return {number: one for number, one in self.by_rank.items() if one.weights}

    @property
    def work(self) -> dict[Key, Counter[Work]]:
        found: dict[Key, Counter[Work]] = {}
        for rank in self.ranks.values():
            for key, work in rank.own:
                found.setdefault(key, Counter())[work] += 1
        for _, key, work in self.others:
            found.setdefault(key, Counter())[work] += 1
        return found


def read(folder: Path, output: Iterable[str]) -> Books:
    """The log in `folder`; `output` is what was printed.

    A process in the place of a lost one may go on with that one's file: `LOG` was its variable.
    """
    books = Books(printed=[line for line in output if line.startswith("step ")])
    lines = [
        line.split(" ")
        for path in sorted(folder.glob("lines.*"))
        for line in path.read_text().splitlines()
    ]
    began = [(int(rest[0]), pid, rank) for kind, pid, rank, *rest in lines if kind == "began"]
    for _, pid, rank in sorted(began):
        books.ranks[int(pid)] = Rank(int(rank))
    for kind, pid, rank, *rest in lines:
        _enter(books, kind, int(pid), int(rank), rest)
    return books


def _enter(books: Books, kind: str, pid: int, rank: int, rest: list[str]) -> None:
    process = books.ranks.get(pid)
    if process is None:
        books.strangers.append(f"{kind} of {rank}: {rest}")
    elif kind == "batch":
        step, micro, ids, seen = rest
        key, work = (rank, int(step), int(micro)), (ids, seen)
        if rank == process.rank:
            known = (key, work) in process.own
            (process.again if known else process.own).append((key, work))
        else:
            books.others.append((pid, key, work))
    elif kind == "step" and rank == process.rank:  # code of a lost rank may go on to its line
        process.losses.append((int(rest[0]), float.fromhex(rest[1])))
    elif kind == "weights":
        process.weights = tuple(map(float.fromhex, rest))
