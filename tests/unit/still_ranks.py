"""Ranks that stand still, and launchers that answer, around the machine `Standstill`."""

from dataclasses import replace

from rendezvous.membership.hang_events import (
    AllQuiet,
    Condemned,
    Effect,
    LookAt,
    Members,
    Parted,
    Stuck,
    Tick,
)
from rendezvous.membership.standstill import TICK_S, Standstill
from rendezvous.protocol.hang_messages import Evidence, Progress, Stack
from rendezvous.protocol.progress_page import NO_LIMIT_MS, Phase, members

VERDICTS = (Condemned, Stuck, Parted, AllQuiet)


class Job:
    """Ranks that stand still, launchers that answer at once, and all that was found."""

    def __init__(
        self, *replicas: tuple[int, ...], protected: bool = True, hang_limit_s: float = 0.0
    ) -> None:
        self.machine = Standstill(hang_limit_s=hang_limit_s)
        self.slots = {rank: slot for slot, ranks in enumerate(replicas) for rank in ranks}
        self.now = 0.0
        self.found: list[tuple[float, Effect]] = []
        self.marks: dict[int, Progress] = {}
        self.state = dict.fromkeys(self.slots, "S")
        self.cpu_ms_per_s = dict.fromkeys(self.slots, 0.0)
        self.within: set[int] = set()
        self.joined: dict[int, tuple[tuple[int, int], ...]] = {}  # by their stacks
        self.mute: set[int] = set()  # they show no stack
        self.silent: set[int] = set()  # ranks whose launcher does not answer
        self.machine.step(Members(slots=self.slots, protected=protected), 0.0)

    def stands(
        self, rank: int, phase: Phase = Phase.MICROBATCH, *, serial: int = 9, age_ms: int = 1500
    ) -> None:
        self._told(mark_of(rank, phase, serial, age_ms))

    def waits(
        self,
        *ranks: int,
        number: int = 1,
        channel: int = 5,
        generation: int = 1,
        of: tuple[int, ...] = (),
        limit_ms: int = NO_LIMIT_MS,
        serial: int = 9,
    ) -> None:
        for rank in ranks:
            mark = mark_of(rank, Phase.SETTLE, serial, 1500)
            wait = replace(
                mark, waits=True, channel=channel, number=number, generation=generation,
                limit_ms=limit_ms,
                ranks=members(of or tuple(self.slots)), what=f"operation {number}",
            )  # fmt: skip
            self._told(wait)

    def moves(self, rank: int) -> None:
        self._told(mark_of(rank, Phase.MICROBATCH, 10, 0))

    def _told(self, mark: Progress) -> None:
        self.marks[mark.rank] = mark
        self._take(self.machine.step(mark, self.now))

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now += TICK_S
            self._take(self.machine.step(Tick(), self.now))
            self.machine.check()

    def _take(self, effects: list[Effect]) -> None:
        self.found += [(self.now, effect) for effect in effects]
        for effect in effects:
            if isinstance(effect, LookAt):
                self._look(effect)

    def _look(self, look: LookAt) -> None:
        for rank in set(look.ranks) - self.silent:
            evidence = Evidence(
                rank=rank, incarnation=0, hang=look.hang, look=look.look, stacks=look.stacks,
                serial=self.marks[rank].serial, state=self.state[rank],
                cpu_ms=int(self.cpu_ms_per_s[rank] * self.now), kernel="",
            )  # fmt: skip
            self._take(self.machine.step(evidence, self.now))
            if look.stacks and self.state[rank] != "T" and rank not in self.mute:
                stack = Stack(
                    rank=rank, generation=1, hang=look.hang, look=look.look, digest=1,
                    frame=f"train.py:{rank} f", turns=False, within=rank in self.within,
                    joined=self.joined.get(rank, ()),
                )  # fmt: skip
                self._take(self.machine.step(stack, self.now))

    def of(self, kind: type) -> list[tuple[float, Effect]]:
        return [(at, effect) for at, effect in self.found if isinstance(effect, kind)]

    @property
    def condemned(self) -> list[int]:
        return [effect.rank for _, effect in self.found if isinstance(effect, Condemned)]

    def verdict(self) -> tuple[float, Effect]:
        return next((at, effect) for at, effect in self.found if isinstance(effect, VERDICTS))


def mark_of(rank: int, phase: Phase, serial: int, age_ms: int) -> Progress:
    return Progress(
        rank=rank, incarnation=0, serial=serial, age_ms=age_ms, phase=phase, step=3, index=0,
        waits=False,
    )  # fmt: skip


FOUR = ((0,), (1,), (2,), (3,))
