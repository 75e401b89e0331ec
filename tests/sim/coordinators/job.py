"""One simulated history of launchers: what each decides in the job, and whom it believes dead.

Every launcher is its production machines: `Leadership`, with register, store and handover, and an
`Inquiry` about each other one. A turn of its loop does what the real one's does: it hears what has
come, asks about broken calls, and lets time pass.
"""

from collections import Counter, deque
from dataclasses import dataclass, field

from recoverrun.launcher.leadership.acts import Act, CutOff, TakeOver
from recoverrun.launcher.leadership.leadership import Leadership
from recoverrun.launcher.leadership.loss_news import leave
from recoverrun.launcher.network.frames import Envelope
from recoverrun.launcher.network.inquiries import Inquiry
from rendezvous.consensus.configuration import Configuration
from rendezvous.consensus.register_events import Dead, Part
from rendezvous.coordinator.recovery_policy import USUAL
from rendezvous.protocol.formation_messages import Beat, Start
from rendezvous.protocol.messages import Leaving, Message
from rendezvous.protocol.records import Record
from tests.sim.coordinators.lines import Lines
from tests.sim.coordinators.plan import Plan
from tests.sim.engine import Engine
from tests.sim.views.book import Book
from tests.sim.violation import Violation, demand

SEEN_S = 5.0
"""A loss is counted within so many seconds."""

SOON_S = 3.0
"""The last launcher goes on alone within so many seconds of the last loss."""


@dataclass(slots=True)
class Launcher:
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
    leaves: bool = False


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
        self.launchers = {name: self._launcher(name) for name in plan.names}
        self.launchers[plan.names[0]].coordinates = True
        for place, name in enumerate(plan.names):
            acts = self.launchers[name].leadership.join(
                _start(plan.names, place), policy=USUAL, several=True, now=0.0
            )
            self._carry_out(self.launchers[name], acts)
            self._plan_turn(self.launchers[name])

    def run(self) -> Outcome:
        """Play it; all goes wrong that is not as it has to be."""
        plan, violation = self.plan, None
        for at_s, place in plan.kills:
            self.engine.at(at_s, self._kill, plan.names[place])
        for at_s, place in plan.leaves:
            self.engine.at(at_s, self._leave, self.launchers[plan.names[place]])
        for stall in plan.stalls:
            self.engine.at(stall.at_s, self._stall, plan.names[stall.place], stall.for_s)
        try:
            while self.engine.now < plan.over_s and self.engine.run_one():
                pass
            last, lost_at = self.launchers[plan.last], plan.kills[-1][0]
            demand(last.coordinates, "last", f"{plan.last} does not coordinate")
            stall_s = sum(stall.for_s for stall in plan.stalls)
            late = f"alone only {self.alone_at - lost_at:.1f} s after the last loss"
            demand(self.alone_at < lost_at + SOON_S + stall_s, "late", late)
            self._check_losses(last)
        except Violation as found:
            violation = found
        return Outcome(plan, violation, self.coverage, self.told)

    def _check_losses(self, last: Launcher) -> None:
        """The last one knows of each loss, once, whoever has counted it, and how long ago; and of
        no planned leave.
        """
        now, names = self.engine.now, self.plan.names
        left = {place for _, place in self.plan.leaves}
        kills = ((at_s, place) for at_s, place in self.plan.kills if place not in left)
        killed = {names[place]: (at_s, place) for at_s, place in kills}
        told = last.leadership.flapping_nodes.strikes(now)
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

    def _launcher(self, name: str) -> Launcher:
        leadership = Leadership(own=name, chance=self.engine.rng.random)
        others = (other for other in self.plan.names if other != name)
        return Launcher(name, leadership, {other: Inquiry() for other in others})

    def _plan_turn(self, launcher: Launcher) -> None:
        """Have its loop turn when it has something to do, and is scheduled."""
        now = self.engine.now
        times = [launcher.leadership.deadline() or float("inf")]
        broken = (name for name in launcher.inquiries if not self.lines.up(name))
        times += [launcher.inquiries[name].due for name in broken]
        due = now if launcher.mail else max(now, min(times))
        at = max(due, launcher.stalled_until) + self.engine.jitter(self.plan.slice_s)
        if launcher.alive and at < launcher.turn_at:
            launcher.turn_at = at
            self.engine.at(at, self._turn, launcher, at)

    def _turn(self, launcher: Launcher, planned_at: float) -> None:
        if planned_at != launcher.turn_at or not launcher.alive:
            return
        launcher.turn_at, now = float("inf"), self.engine.now
        if now >= launcher.stalled_until:
            mail, launcher.mail = launcher.mail, deque()
            for sender, message in mail:
                self._hear(launcher, sender, message)
            for name in self._ended(launcher):
                self._say(launcher, f"knows that {name} has ended")
                self._carry_out(launcher, launcher.leadership.tell_register(Dead(name), now))
            self._carry_out(launcher, launcher.leadership.tick(now))
        self._plan_turn(launcher)

    def _ended(self, launcher: Launcher) -> list[str]:
        """Launchers whose hosts refuse connections, each once."""
        now, ended = self.engine.now, []
        for name, inquiry in list(launcher.inquiries.items()):
            asks = inquiry.look(up=self.lines.up(name), now=now)
            if asks and self.lines.refused(name):
                ended.append(name)
                del launcher.inquiries[name]
        launcher.dead.update(ended)
        return ended

    def _hear(self, launcher: Launcher, sender: str, message: Message) -> None:
        if sender in launcher.dead:
            self.coverage["words of the dead"] += 1
        if self.verbose and type(message).__name__ not in ("Ping", "Pong", "Lead", "Granted"):
            self._say(launcher, f"gets {message} from {sender}")
        if isinstance(message, Leaving):
            if launcher.coordinates and launcher.leadership.leader == launcher.name:
                self.coverage["leave"] += 1
                acts = launcher.leadership.tell_register(Part(sender), self.engine.now)
                self._carry_out(launcher, acts)
            return
        launcher.leadership.obeys(sender, message)
        self._carry_out(launcher, launcher.leadership.hear(sender, message, self.engine.now))

    def _carry_out(self, launcher: Launcher, acts: list[Act]) -> None:
        for act in acts:
            match act:
                case Envelope(to=to, message=message):
                    self._send(launcher, to, message)
                case TakeOver():
                    self.coverage["takeover"] += 1
                    launcher.coordinates = True
                    self._greet(launcher)
                case CutOff(reason=reason):
                    self._say(launcher, reason)
                    over = launcher.leaves or not launcher.alive
                    demand(over, "cut off", f"{launcher.name}: {reason}")
                case Record():
                    self._say(launcher, act.reason)
                    self._note(launcher, act)
                case _:
                    pass

    def _note(self, launcher: Launcher, record: Record) -> None:
        if record.event == "leader.elect":
            self.coverage["election"] += 1
        if record.event == "roll.decide":
            nodes = record.fields["nodes"]
            if nodes == [f"node-{self.plan.names.index(self.plan.last)}"]:
                self.alone_at = min(self.alone_at, self.engine.now)
            number = record.fields["number"]
            assert isinstance(number, int) and isinstance(nodes, list), f"{record}"
            members = tuple(self.plan.names[int(str(node)[5:])] for node in nodes)
            self.book.decided(Configuration(number, launcher.leadership.term, members))

    def _greet(self, launcher: Launcher) -> None:
        """Whoever coordinates tells the members so."""
        beat = Beat(node="", incarnation=launcher.name, term=launcher.leadership.term)
        for name in self.plan.names:
            self._send(launcher, name, beat)

    def _send(self, launcher: Launcher, to: str, message: Message) -> None:
        other = self.launchers.get(to)
        if other is None or to == launcher.name:
            return

        def arrive() -> None:
            other.mail.append((launcher.name, message))
            self._plan_turn(other)

        self.lines.send(launcher.name, to, arrive)

    # --------------------------------------------------------------------------- faults

    def _kill(self, name: str) -> None:
        self._say(self.launchers[name], "is killed")
        self.launchers[name].alive = False
        self.lines.end(name)
        for launcher in self.launchers.values():
            self._plan_turn(launcher)

    def _leave(self, launcher: Launcher) -> None:
        """It says so once, as a real one does, and takes no part in what follows."""
        if not launcher.alive:
            return
        self._say(launcher, "leaves")
        launcher.leaves = True
        leadership = launcher.leadership
        self._carry_out(
            launcher, leave(leadership.flapping_nodes, launcher.name, "asked", leadership.callees())
        )
        word = Leaving(node="", exit_code=0, reason="")
        self._send(launcher, leadership.leader, word)
        if not launcher.coordinates:
            leadership.close()

    def _stall(self, name: str, for_s: float) -> None:
        launcher = self.launchers[name]
        launcher.stalled_until = max(launcher.stalled_until, self.engine.now + for_s)
        self._say(launcher, f"stands still for {for_s:.2f} s")

    def _say(self, launcher: Launcher, words: str) -> None:
        if self.verbose:
            self.told.append(f"{self.engine.now:8.3f} {launcher.name} {words}")


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
