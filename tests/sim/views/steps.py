"""The data plane of a simulated history: a step needs a contribution of every member."""

import random
import zlib
from collections import Counter
from dataclasses import dataclass, field

from rendezvous.consensus import configuration as configurations
from rendezvous.consensus.configuration import Configuration
from tests.sim.views.book import Book, Held
from tests.sim.views.node import Node


@dataclass(slots=True)
class Work:
    """The steps of one configuration."""

    reports: dict[str, tuple[int, int, str]] = field(default_factory=dict)
    states: dict[str, Held] = field(default_factory=dict)
    start: Held | None = None
    given: dict[int, set[str]] = field(default_factory=dict)
    after: dict[int, Held] = field(default_factory=dict)  # finished steps


class Steps:
    """The steps of all configurations; `blocked` are links, (from, to) by place."""

    def __init__(self, book: Book, rng: random.Random, blocked: Counter[tuple[int, int]]) -> None:
        self._book = book
        self._rng = rng
        self._blocked = blocked
        self._works: dict[int, Work] = {}

    def see(self, node: Node, configuration: Configuration) -> bool:
        """Learn that our step is finished, unless its collectives went with the old members.

        True if it was, with all present members.
        """
        work = self._works.get(node.begun)
        if work is None or node.state[0] not in work.after:
            return False
        reported = node.name in self._works.get(configuration.number, Work()).reports
        if node.begun == configuration.number or (not reported and self._rng.random() < 0.5):
            if node.name in work.given[node.state[0]]:
                node.state = work.after[node.state[0]]
                return node.begun == configuration.number
        return False

    def begin(self, node: Node, configuration: Configuration) -> bool:
        """Begin the configuration with what all members agree on; False while some are missing."""
        work = self._works.setdefault(configuration.number, Work())
        if node.name not in work.reports:
            work.reports[node.name] = (node.begun, node.state[0], node.name)
            work.states[node.name] = node.state
        if len(work.reports) < len(configuration.members):
            return False
        if work.start is None:
            work.start = work.states[configurations.source(sorted(work.reports.values()))]
            self._book.began(configuration.number, work.start)
        node.state, node.begun = work.start, configuration.number
        return True

    def apart(self, node: Node, configuration: Configuration) -> bool:
        """True if a link between `node` and another member is blocked."""
        places = [int(name[1 : name.index(".")]) for name in configuration.members]
        here = node.place
        return any(self._blocked[here, p] > 0 or self._blocked[p, here] > 0 for p in places)

    def contribute(self, node: Node, configuration: Configuration, now: float) -> None:
        """Give the part of `node` to its step, which ends with the last one."""
        work = self._works[configuration.number]
        step, digest = node.state
        self._book.contributes(configuration.number, node.name, node.state)
        given = work.given.setdefault(step, set())
        given.add(node.name)
        if step not in work.after and given >= set(configuration.members):
            mixed = zlib.crc32(f"{digest} {step} {configuration.number}".encode())
            work.after[step] = (step + 1, f"{mixed:08x}")
            self._book.finishes(configuration.number, step, work.after[step], now)
