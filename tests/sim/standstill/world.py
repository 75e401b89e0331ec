"""Ranks, launchers and the real machine `Standstill`, in virtual time."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from rendezvous.membership.hang_events import (
    AllQuiet,
    Cleared,
    Condemned,
    Effect,
    Event,
    LookAt,
    Members,
    Parted,
    Stepped,
    Stuck,
    Suspected,
    Tick,
)
from rendezvous.membership.standstill import Standstill
from rendezvous.protocol.progress_page import Phase
from tests.sim.engine import Engine
from tests.sim.standstill.activities import HANGS, WAITS, WITHIN, Hang, Stall
from tests.sim.standstill.book import Book, Violation
from tests.sim.standstill.launcher import Launcher
from tests.sim.standstill.plan import HangAt, Plan, draw
from tests.sim.standstill.rank import Act, Hangs, Join, Rank, Work, script

PARETO = 1.3

DEADLINE_S = 20_000.0
"""No run lasts so long."""

DELAY_S = 0.005


@dataclass(frozen=True, slots=True)
class Outcome:
    plan: Plan
    violation: Violation | None
    coverage: Counter[str]
    lines: list[str]
    end: str
    now: float


class World:
    """One run of `plan`."""

    def __init__(self, plan: Plan, *, verbose: bool = False) -> None:
        self.plan = plan
        self.engine = Engine(plan.seed)
        self.machine = Standstill(hang_limit_s=plan.hang_limit_s)
        self.book = Book(self)
        self.generation = 1
        self.ranks = {
            number: Rank(number, number // plan.shards, number * plan.nodes // plan.world)
            for number in range(plan.world)
        }
        self.launchers = [Launcher(self, node) for node in range(plan.nodes)]
        self.pending: dict[str, tuple[Join, set[int]]] = {}
        self.planned = list(plan.hangs)
        self.stuck_left = plan.stuck[1]
        self.torn: set[int] = set()  # ranks that wait for what others have completed
        self.committed_steps: set[int] = set()
        self.end = ""
        self.tick_at: float | None = None
        self.lines: list[str] = []
        self._verbose = verbose
        self._stalls_at: dict[int, int] = {}  # which rank stalls in a step

    # --------------------------------------------------------------------------- running

    @property
    def now(self) -> float:
        return self.engine.now

    def run(self) -> Outcome:
        self.tell_members()
        for rank in self.ranks.values():
            rank.script, rank.on_mark = script(self, rank), self.book.marks
            self.engine.at(0.0, self.go_on, rank, rank.turn)
        for launcher in self.launchers:
            launcher.begin()
        while not self.end and self.book.violation is None and self.now < DEADLINE_S:
            self.engine.run_one()
        if not self.end:
            self.book.break_("ends", "the run does not end")
        return Outcome(
            self.plan, self.book.violation, self.book.coverage, self.lines, self.end, self.now
        )

    def say(self, words: str) -> None:
        if self._verbose:
            self.lines.append(f"{self.now:9.3f}  {words}")

    def live(self) -> tuple[int, ...]:
        return tuple(self.ranks)

    # --------------------------------------------------------------------------- scripts

    def go_on(self, rank: Rank, turn: int) -> None:
        """Let a rank's script run to its next act."""
        if turn != rank.turn or self.ranks.get(rank.number) is not rank:
            return
        rank.turn += 1
        act = next(rank.script, None)
        if act is None:
            self.end = self.end or "well"
            return
        self._begin(rank, act)

    def _begin(self, rank: Rank, act: Act) -> None:
        match act:
            case Work(seconds=seconds, activity=activity):
                rank.act(activity, self.now)
                self.engine.after(seconds, self.go_on, rank, rank.turn)
            case Hangs(kind=kind):
                self._hang(rank, kind)
            case Join():
                self._join(rank, act)

    def _hang(self, rank: Rank, kind: Hang) -> None:
        waits = " as it waits" if rank.waits is not None else ""
        self.say(f"rank {rank.number} hangs: {kind} in {rank.phase.name}{waits}")
        rank.act(HANGS[kind], self.now)
        rank.hung = kind
        self.book.hangs(rank)

    def _slots(self) -> set[int]:
        return {rank.slot for rank in self.ranks.values()}

    def _join(self, rank: Rank, join: Join) -> None:
        if join.seen:
            if rank.waits is None:
                rank.number_in[join.channel] = rank.number_in.get(join.channel, 0) + 1
            rank.mark(self.now)
            rank.waits, rank.joined_in = join, self.generation
            self.book.waits(rank)
            if self.plan.limit_s:
                self.engine.after(self.plan.limit_s, self._limit, rank, rank.turn)
        else:
            rank.native = join
        if join.seen and (rank.number, rank.step) == self.plan.stopped and len(self._slots()) > 1:
            self._hang(rank, "stopped")
            return
        rank.act(WAITS if join.seen else WITHIN, self.now)
        _, joined = self.pending.setdefault(join.channel, (join, set()))
        joined.add(rank.number)
        self._complete(join)

    def _complete(self, join: Join) -> None:
        joined = self.pending[join.channel][1]
        if not {one for one in join.ranks if one in self.ranks} <= joined:
            return
        del self.pending[join.channel]
        turns = {one: self.ranks[one].turn for one in joined if one in self.ranks}
        if self.stuck_left and self.ranks[min(turns)].step == self.plan.stuck[0] and join.seen:
            self.stuck_left -= 1
            self.say(f"stuck: {join.channel}")
            self.book.sticks()
            if self.plan.torn and len(turns) > 1:
                self.torn.add(max(turns))
                self._over(join, {one: turn for one, turn in turns.items() if one != max(turns)})
            return
        self.engine.after(join.transfer_s, self._over, join, turns)

    def _over(self, join: Join, turns: dict[int, int]) -> None:
        come = [
            rank
            for number, turn in turns.items()
            if (rank := self.ranks.get(number)) is not None and rank.turn == turn
        ]
        for rank in come:
            if join.seen:
                rank.mark(self.now)
                rank.freed_at = self.now
            rank.waits = rank.native = None
        for rank in come:
            self.go_on(rank, rank.turn)

    def _limit(self, rank: Rank, turn: int) -> None:
        if self.ranks.get(rank.number) is rank and rank.turn == turn and not self.end:
            self.book.limited(rank)
            self.end = "the script's own limit"

    # --------------------------------------------------------------------------- Stage

    def hang(self, rank: Rank) -> Hang | None:
        for planned in self.planned:
            if self._is_here(planned, rank) and len(self._slots()) > 2:
                self.planned.remove(planned)
                return planned.kind
        return None

    def _is_here(self, planned: HangAt, rank: Rank) -> bool:
        return (
            planned.rank == rank.number
            and rank.step >= planned.step
            and planned.phase is rank.phase
        )

    def stall(self, rank: Rank) -> tuple[float, Stall] | None:
        """Once in some steps one rank stalls in one of its phases."""
        plan, rng = self.plan, self.engine.rng
        if not plan.stall_chance or not rank.begun:
            return None
        if rank.step not in self._stalls_at:
            struck = rng.choice(tuple(self.ranks)) if rng.random() < plan.stall_chance else -1
            self._stalls_at[rank.step] = struck
        if self._stalls_at[rank.step] != rank.number:
            return None
        if rank.phase is not Phase.BETWEEN and rng.random() < 0.5:
            return None  # in a later phase of the step
        self._stalls_at[rank.step] = -1
        seconds = min(plan.stall_most_s, plan.stall_s * rng.paretovariate(PARETO))
        return seconds, rng.choice(plan.stalls)

    def around(self, seconds: float) -> float:
        return seconds * self.engine.rng.uniform(0.95, 1.1)

    def alone(self, rank: Rank) -> bool:
        return rank.number == min(self.ranks)

    def committed(self, rank: Rank) -> None:
        if rank.step not in self.committed_steps:
            self.committed_steps.add(rank.step)
            self.book.stepped(rank.step)
            self.book.stuck_now = False
            self.to_machine(Stepped(rank.step), 0.0)

    # --------------------------------------------------------------------------- the machine

    def unheard(self, rank: int) -> None:
        self.book.unheard(rank)

    def delayed(self, seconds: float) -> None:
        self.book.delayed(seconds)

    def thaws_at(self, node: int) -> float:
        """When a launcher's process runs next."""
        now = self.now
        for frozen, begin, seconds in self.plan.frozen:
            if frozen == node and begin <= now < begin + seconds:
                now = begin + seconds
        return now

    def to_machine(self, event: Event, delay_s: float = DELAY_S) -> None:
        self.engine.after(delay_s, self._hears, event)

    def _hears(self, event: Event) -> None:
        """The coordinator is in the process of the first launcher."""
        if (thaws_at := self.thaws_at(0)) > self.now:
            self.engine.at(thaws_at, self._hears, event)
            return
        self._feed(event)

    def _feed(self, event: Event) -> None:
        if self.end:
            return
        effects = self.machine.step(event, self.now)
        self.machine.check()
        self._plan_tick()
        self._carry_out(effects)

    def _plan_tick(self) -> None:
        at = self.machine.deadline()
        if at is None:
            self.tick_at = None
        elif self.tick_at is None or at < self.tick_at or self.tick_at <= self.now:
            self.tick_at = at
            self.engine.at(at, self._tick, at)

    def _tick(self, planned_at: float) -> None:
        if planned_at == self.tick_at:
            self.tick_at = None
            self._hears(Tick())

    def tell_members(self) -> None:
        slots = {number: rank.slot for number, rank in self.ranks.items()}
        self._feed(Members(slots=slots, protected=True, generation=self.generation))

    def _carry_out(self, effects: list[Effect]) -> None:
        lost: list[int] = []
        meet = False
        for effect in effects:
            if not isinstance(effect, LookAt):
                self.say(str(effect))
            match effect:
                case LookAt():
                    for launcher in self.launchers:
                        launcher.asked(effect)
                case Condemned(rank=number):
                    if number in self.ranks:
                        self.book.condemned(effect)
                        lost.append(number)
                case Suspected():
                    self.book.suspected(effect)
                case Cleared():
                    self.book.cleared(effect)
                case AllQuiet():
                    self.book.all_quiet(effect)
                    self.end = "quiet for too long" if effect.over else self.end
                case Parted():
                    self.book.parted(effect)
                    self.end = "parted"
                case Stuck():
                    self.book.stuck(effect)
                    meet |= effect.meet
                    self.end = self.end if effect.meet else "stuck"
        if lost or meet:
            self._meet_anew(lost)

    def _meet_anew(self, lost: list[int]) -> None:
        """A new generation: replicas are gone, whoever waits joins again."""
        slots = {self.ranks[number].slot for number in lost if number in self.ranks}
        self.ranks = {n: rank for n, rank in self.ranks.items() if rank.slot not in slots}
        if not self._slots():
            self.end = "nobody is left"
            return
        self.generation += 1
        least = min(rank.slot for rank in self.ranks.values())
        for rank in self.ranks.values():
            rank.debts += len(slots) * (rank.slot == least)
        self.pending = {c: p for c, p in self.pending.items() if not p[0].seen}
        self.book.meets_anew()
        self.tell_members()
        for rank in self.ranks.values():
            rank.number_in = dict.fromkeys(rank.number_in, 0)
            if rank.waits is not None and not rank.debts:
                rank.number_in[rank.waits.channel] = 1
            if rank.number in self.torn and rank.waits is not None:  # others tell it the result
                self.torn.discard(rank.number)
                rank.mark(self.now)
                rank.waits, rank.freed_at = None, self.now
                rank.turn += 1
                self.engine.after(2 * DELAY_S, self.go_on, rank, rank.turn)
        for rank in tuple(self.ranks.values()):
            if rank.waits is not None and rank.hung is None:
                rank.turn += 1
                self.engine.after(2 * DELAY_S, self.go_on, rank, rank.turn)


Drawn = Callable[[int], Plan]


def simulate(seed: int, *, verbose: bool = False, drawn: Drawn = draw) -> Outcome:
    return World(drawn(seed), verbose=verbose).run()
