"""One simulated history of launchers: what each decides in the job, and whom it believes dead.

Every launcher is its production machines: `Leadership`, with register, store and handover, and an
`Inquiry` about each other one. A turn of its loop does what the real one's does: it hears what has
come, asks about broken calls, and lets time pass.
"""

from collections import Counter, deque
from dataclasses import dataclass, field

from recoverrun.launcher.leadership.acts import Act, CutOff, TakeOver
from recoverrun.launcher.leadership.leadership import Leadership
from recoverrun.launcher.network.frames import Envelope
from recoverrun.launcher.network.inquiries import Inquiry
from rendezvous.consensus.configuration import Configuration
from rendezvous.consensus.register_events import Dead
from rendezvous.coordinator.recovery_policy import USUAL
from rendezvous.protocol.formation_messages import Beat, Start
from rendezvous.protocol.messages import Message
from rendezvous.protocol.records import Record
from tests.sim.engine import Engine
from tests.sim.seats.lines import Lines
from tests.sim.seats.plan import Plan
from tests.sim.views.book import Book
from tests.sim.violation import Violation, demand

SEEN_S = 5.0
"""A loss is counted within so many seconds."""

SOON_S = 3.0
"""The last launcher goes on alone within so many seconds of the last loss."""


@dataclass(slots=True)
class Seat:
    """One launcher."""

    name: str
    leadership: Leadership
    inquiries: dict[str, Inquiry]
    alive: bool = True
    stalled_until: float = 0.0
    turn_at: float = float("inf")  # of the next turn of its loop
    mail: deque[tuple[str, Message]] = field(default_factory=deque)
    dead: set[str] = field(default_factory=set)
    coordinates: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    plan: Plan
    violation: Violation | None
    coverage: Counter[str]
    lines: list[str]


class Job:
    """The history of a plan."""

    def __init__(self, plan: Plan, *, verbose: bool = False) -> None:
        self.plan = plan
        self.verbose = verbose
        self.engine = Engine(plan.seed)
        self.lines = Lines(self.engine, plan.delay_s)
        self.book = Book(Configuration(1, 1, plan.names))
        self.told: list[str] = []
        self.coverage: Counter[str] = Counter()
        self.alone_at = float("inf")  # since when the last one goes on alone
        self.seats = {name: self._seat(name) for name in plan.names}
        self.seats[plan.names[0]].coordinates = True
        for place, name in enumerate(plan.names):
            acts = self.seats[name].leadership.join(
                _start(plan.names, place), policy=USUAL, several=True, now=0.0
            )
            self._carry_out(self.seats[name], acts)
            self._plan_turn(self.seats[name])

    def run(self) -> Outcome:
        """Play it; all goes wrong that is not as it has to be."""
        plan, violation = self.plan, None
        for at_s, place in plan.kills:
            self.engine.at(at_s, self._kill, plan.names[place])
        for stall in plan.stalls:
            self.engine.at(stall.at_s, self._stall, plan.names[stall.place], stall.for_s)
        try:
            while self.engine.now < plan.over_s and self.engine.run_one():
                pass
            last, lost_at = self.seats[plan.last], plan.kills[-1][0]
            demand(last.coordinates, "last", f"{plan.last} does not coordinate")
            stall_s = sum(stall.for_s for stall in plan.stalls)
            late = f"alone only {self.alone_at - lost_at:.1f} s after the last loss"
            demand(self.alone_at < lost_at + SOON_S + stall_s, "late", late)
            self._check_losses(last)
        except Violation as found:
            violation = found
        return Outcome(plan, violation, self.coverage, self.told)

    def _check_losses(self, last: Seat) -> None:
        """The last one knows of each loss, once, whoever has counted it, and how long ago."""
        now, names = self.engine.now, self.plan.names
        killed = {names[place]: (at_s, place) for at_s, place in self.plan.kills}
        told = last.leadership.flapping_nodes.told(now)
        found = [(one, who, age_s) for one in told for who, age_s in one.lost]
        known = sorted(who for _, who, _ in found)
        demand(known == sorted(killed), "losses", f"it knows of {known}, not of {sorted(killed)}")
        for one, who, age_s in found:
            at_s, place = killed[who]
            node = (one.node, one.node_rank)
            demand(node == (f"node-{place}", place), "losses", f"{who} was not on {node}")
            seen = at_s <= now - age_s + 0.1 and now - age_s < at_s + SEEN_S
            demand(seen, "losses", f"{who} was lost at {at_s:.1f}, not at {now - age_s:.1f}")

    # --------------------------------------------------------------------------- launchers

    def _seat(self, name: str) -> Seat:
        leadership = Leadership(own=name, chance=self.engine.rng.random)
        others = (other for other in self.plan.names if other != name)
        return Seat(name, leadership, {other: Inquiry() for other in others})

    def _plan_turn(self, seat: Seat) -> None:
        """Have its loop turn when it has something to do, and is scheduled."""
        now = self.engine.now
        times = [seat.leadership.deadline() or float("inf")]
        broken = (name for name in seat.inquiries if not self.lines.up(name))
        times += [seat.inquiries[name].due for name in broken]
        due = now if seat.mail else max(now, min(times))
        at = max(due, seat.stalled_until) + self.engine.jitter(self.plan.slice_s)
        if seat.alive and at < seat.turn_at:
            seat.turn_at = at
            self.engine.at(at, self._turn, seat, at)

    def _turn(self, seat: Seat, planned_at: float) -> None:
        if planned_at != seat.turn_at or not seat.alive:
            return
        seat.turn_at, now = float("inf"), self.engine.now
        if now >= seat.stalled_until:
            mail, seat.mail = seat.mail, deque()
            for sender, message in mail:
                self._hear(seat, sender, message)
            for name in self._ended(seat):
                self._say(seat, f"knows that {name} has ended")
                self._carry_out(seat, seat.leadership.ballot(Dead(name), now))
            self._carry_out(seat, seat.leadership.tick(now))
        self._plan_turn(seat)

    def _ended(self, seat: Seat) -> list[str]:
        """Launchers whose hosts refuse connections, each once."""
        now, ended = self.engine.now, []
        for name, inquiry in list(seat.inquiries.items()):
            asks = inquiry.look(up=self.lines.up(name), now=now)
            if asks and self.lines.refused(name):
                ended.append(name)
                del seat.inquiries[name]
        seat.dead.update(ended)
        return ended

    def _hear(self, seat: Seat, sender: str, message: Message) -> None:
        if sender in seat.dead:
            self.coverage["words of the dead"] += 1
        if self.verbose and type(message).__name__ not in ("Ping", "Pong", "Lead", "Granted"):
            self._say(seat, f"gets {message} from {sender}")
        seat.leadership.obeys(sender, message)
        self._carry_out(seat, seat.leadership.hear(sender, message, self.engine.now))

    def _carry_out(self, seat: Seat, acts: list[Act]) -> None:
        for act in acts:
            match act:
                case Envelope(to=to, message=message):
                    self._send(seat, to, message)
                case TakeOver():
                    self.coverage["takeover"] += 1
                    seat.coordinates = True
                    self._greet(seat)
                case CutOff(reason=reason):
                    self._say(seat, reason)
                    demand(not seat.alive, "cut off", f"{seat.name}: {reason}")
                case Record():
                    self._say(seat, act.reason)
                    self._note(seat, act)
                case _:
                    pass

    def _note(self, seat: Seat, record: Record) -> None:
        if record.event == "leader.elect":
            self.coverage["election"] += 1
        if record.event == "roll.decide":
            nodes = record.fields["nodes"]
            if nodes == [f"node-{self.plan.names.index(self.plan.last)}"]:
                self.alone_at = min(self.alone_at, self.engine.now)
            number = record.fields["number"]
            assert isinstance(number, int) and isinstance(nodes, list), f"{record}"
            members = tuple(self.plan.names[int(str(node)[5:])] for node in nodes)
            self.book.decided(Configuration(number, seat.leadership.term, members))

    def _greet(self, seat: Seat) -> None:
        """Whoever coordinates tells the members so."""
        beat = Beat(node="", incarnation=seat.name, term=seat.leadership.term)
        for name in self.plan.names:
            self._send(seat, name, beat)

    def _send(self, seat: Seat, to: str, message: Message) -> None:
        other = self.seats.get(to)
        if other is None or to == seat.name:
            return

        def arrive() -> None:
            other.mail.append((seat.name, message))
            self._plan_turn(other)

        self.lines.send(seat.name, to, arrive)

    # --------------------------------------------------------------------------- faults

    def _kill(self, name: str) -> None:
        self._say(self.seats[name], "is killed")
        self.seats[name].alive = False
        self.lines.end(name)
        for seat in self.seats.values():
            self._plan_turn(seat)

    def _stall(self, name: str, for_s: float) -> None:
        seat = self.seats[name]
        seat.stalled_until = max(seat.stalled_until, self.engine.now + for_s)
        self._say(seat, f"stands still for {for_s:.2f} s")

    def _say(self, seat: Seat, words: str) -> None:
        if self.verbose:
            self.told.append(f"{self.engine.now:8.3f} {seat.name} {words}")


def _start(names: tuple[str, ...], place: int) -> Start:
    return Start(
        generation=1, node_rank=place, nnodes=len(names), first_rank=place, nproc=1,
        world_size=len(names), master_addr="h:1",
        nodes=tuple(f"node-{one}" for one in range(len(names))), leader=names[0],
        peers=tuple((name, "127.0.0.1", 1, 1) for name in names),
        asked=tuple(range(len(names))),
    )  # fmt: skip


def simulate(plan: Plan, *, verbose: bool = False) -> Outcome:
    """Play the history of `plan`."""
    return Job(plan, verbose=verbose).run()
