"""Launchers that agree by one backend or the other: production machines on a network of lists.

Votes are counted in virtual time. A real etcd has the time of its machine, so with one that is the
time of all. Two things are watched in every test: one configuration for each number, and no machine
that breaks an assertion of its own.
"""

import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from rendezvous.consensus.configuration import NOBODY, Configuration
from rendezvous.consensus.etcd_api import Answer, Call
from rendezvous.consensus.etcd_register import LeasedRegister
from rendezvous.consensus.paxos import Register
from rendezvous.consensus.register_events import (
    Answered,
    Cut,
    Effect,
    Elected,
    Enrolled,
    Event,
    Heard,
    Request,
    To,
)
from rendezvous.consensus.register_events import Tick as Wake

STEP_S = 0.05


class Clock(Protocol):
    @property
    def now(self) -> float: ...
    def pass_(self, span_s: float) -> None: ...


class Virtual:
    def __init__(self) -> None:
        self.now = 0.0

    def pass_(self, span_s: float) -> None:
        self.now += span_s


class Real:
    @property
    def now(self) -> float:
        return time.monotonic()

    def pass_(self, span_s: float) -> None:
        time.sleep(span_s)


class Backend(Protocol):
    """One way to agree. `perform` is None where nobody else is asked."""

    clock: Clock
    perform: Callable[[Call], Answer] | None

    def register(
        self, own: str, configuration: Configuration, now: float
    ) -> Register | LeasedRegister: ...
    def first(self, names: tuple[str, ...]) -> Configuration: ...


class Cluster:
    """The first one of `names` begins the job."""

    def __init__(self, backend: Backend, names: tuple[str, ...]) -> None:
        self.backend = backend
        self.clock = backend.clock
        self.decided: dict[int, Configuration] = {}
        self.leaders: list[str] = []  # who was elected, in order
        self.cuts: set[str] = set()
        self.still: set[str] = set()  # stand still, or are dead
        self.apart: set[str] = set()  # hear no launcher, and are not heard
        self.mail: deque[tuple[str, str, object]] = deque()
        first = backend.first(names)
        self.nodes = {name: backend.register(name, first, self.clock.now) for name in names}
        self.run(1.0)

    # --------------------------------------------------------------------------- what happens

    def admit(self, name: str) -> None:
        """A newcomer, which has neither a configuration nor any state."""
        self.nodes[name] = self.backend.register(name, NOBODY, self.clock.now)

    def feed(self, name: str, event: Event) -> None:
        if name in self.still:
            return
        effects = self.nodes[name].step(event, self.clock.now)
        for effect in effects:
            self._carry_out(name, effect)

    def tell_all(self, event: Event) -> None:
        for name in self.nodes:
            self.feed(name, event)

    def run(self, span_s: float) -> None:
        until = self.clock.now + span_s
        while self.clock.now < until:
            self._turn()
            self.clock.pass_(STEP_S)

    def run_until(self, condition: Callable[[], bool], most_s: float) -> float:
        """Run until that; the time that it took."""
        began = self.clock.now
        while not condition():
            assert self.clock.now - began < most_s, f"not within {most_s} s: {self.newest}"
            self._turn()
            self.clock.pass_(STEP_S)
        return self.clock.now - began

    # --------------------------------------------------------------------------- what is seen

    @property
    def newest(self) -> Configuration:
        return self.decided[max(self.decided)] if self.decided else NOBODY

    def all_know(self, *names: str) -> bool:
        """Are these the members of the newest configuration, and do all of them know it?"""
        members = set(self.newest.members) == set(names)
        return members and all(self.nodes[name].configuration == self.newest for name in names)

    def led_by(self, name: str) -> bool:
        return self.newest.leader == name and self.nodes[name].leads

    # --------------------------------------------------------------------------- the network

    def _turn(self) -> None:
        for place, name in enumerate(sorted(self.nodes)):
            node = self.nodes[name]
            if name not in self.still and node.deadline() <= self.clock.now:
                self.feed(name, Wake((place + 0.5) / len(self.nodes)))
        while self.mail:
            sender, to, event = self.mail.popleft()
            parted = {sender, to} & self.apart and sender != to
            if to in self.nodes and not parted and sender not in self.still:
                assert isinstance(event, Heard | Answered), f"{event} is no mail"
                self.feed(to, event)

    def _carry_out(self, name: str, effect: Effect) -> None:
        match effect:
            case To(node=to, message=message):
                self.mail.append((name, to, Heard(name, message)))
            case Request(serial=serial, call=call):
                assert self.backend.perform is not None, "nobody is there to be asked"
                self.mail.append((name, name, Answered(serial, self.backend.perform(call))))
            case Enrolled(configuration=configuration):
                known = self.decided.setdefault(configuration.number, configuration)
                assert known == configuration, (
                    f"two configurations of one number: {known} and {configuration}"
                )
            case Elected():
                self.leaders.append(name)
            case Cut():
                self.cuts.add(name)
