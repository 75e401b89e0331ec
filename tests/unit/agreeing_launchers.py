"""Launchers that agree: their production machines on a network of lists."""

from collections import deque
from functools import partial

from recoverrun.launcher.leadership.acts import Act, TakeOver
from recoverrun.launcher.leadership.leadership import Leadership
from recoverrun.launcher.network.frames import Envelope
from rendezvous.consensus.register_events import Dead, OnSilence
from rendezvous.coordinator.recovery_policy import USUAL
from rendezvous.protocol.formation_messages import Start
from rendezvous.protocol.messages import (
    Message,
)

NAMES = ("a", "b", "c", "d")
STEP_S = 0.05


class Launchers:
    """Four of two ranks each, of which "a" has formed the job."""

    def __init__(self, names: tuple[str, ...] = NAMES, on_silence: OnSilence = "stop") -> None:
        self.now = 0.0
        self.names = names
        self.alive = dict.fromkeys(names, True)
        self.acts: dict[str, list[Act]] = {name: [] for name in names}
        self.mail: deque[tuple[str, str, Message]] = deque()
        self.machines = {
            name: Leadership(
                own=name, chance=partial(float, place / len(names)), on_silence=on_silence
            )
            for place, name in enumerate(names)
        }
        for name in names:
            self.join(name, attempt=0)
        self.run(1.0)

    def start(self, name: str, attempt: int) -> Start:
        place = self.names.index(name)
        return Start(
            generation=1, node_rank=place, nnodes=len(self.names), first_rank=2 * place, nproc=2,
            world_size=2 * len(self.names), master_addr="h:1",
            nodes=tuple(f"node-{one}" for one in self.names), attempt=attempt, leader="a",
            peers=tuple((one, "127.0.0.1", 1, 2) for one in self.names),
        )  # fmt: skip

    def join(self, name: str, attempt: int) -> None:
        machine = self.machines[name]
        start = self.start(name, attempt)
        self.carry_out(name, machine.join(start, policy=USUAL, several=True, now=self.now))

    def carry_out(self, name: str, acts: list[Act]) -> None:
        for act in acts:
            if isinstance(act, Envelope):
                self.mail.append((name, act.to, act.message))
            else:
                self.acts[name].append(act)

    def run(self, span_s: float) -> None:
        until = self.now + span_s
        while self.now < until:
            self.now += STEP_S
            while self.mail:
                sender, to, message = self.mail.popleft()
                if self.alive[sender] and self.alive[to]:
                    self.machines[to].obeys(sender, message)
                    self.carry_out(to, self.machines[to].hear(sender, message, self.now))
            for name in self.names:
                at = self.machines[name].deadline()
                if self.alive[name] and at is not None and at <= self.now:
                    self.carry_out(name, self.machines[name].tick(self.now))

    def kill(self, name: str, *, proved: bool = True) -> None:
        self.alive[name] = False
        for other in self.names if proved else ():
            if self.alive[other]:
                self.carry_out(other, self.machines[other].tell_register(Dead(name), self.now))

    def succeeded(self, name: str) -> list[TakeOver]:
        return [act for act in self.acts[name] if isinstance(act, TakeOver)]
