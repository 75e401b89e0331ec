"""One simulated history of the view register: the production machine on every launcher.

Launchers have clocks that run at their own rates, a network that loses, repeats and delays, and a
data plane that makes steps: a step of a configuration needs a contribution of every member.
"""

import hashlib
from collections import Counter
from collections.abc import Callable

from rendezvous.consensus import timeouts
from rendezvous.consensus.configuration import NOBODY, Configuration
from rendezvous.consensus.etcd_api import witness_of
from rendezvous.consensus.etcd_register import LeasedRegister
from rendezvous.consensus.paxos import Register
from rendezvous.consensus.register_events import (
    Admit,
    Answered,
    Cut,
    Dead,
    Elected,
    Enrolled,
    Event,
    Heard,
    Moved,
    Part,
    Request,
    Settled,
    Tick,
    To,
    WitnessSeen,
)
from tests.sim.engine import Engine
from tests.sim.views.book import Book
from tests.sim.views.bystander import Bystander
from tests.sim.views.drops import Drops
from tests.sim.views.liveness import alive
from tests.sim.views.node import Companion, Node
from tests.sim.views.outcome import Outcome
from tests.sim.views.plan import Fault, Plan, draw
from tests.sim.views.shelf import Shelf
from tests.sim.views.steps import Steps
from tests.sim.violation import Violation, demand

MOST_CALLS = 400_000
CALL_S = 0.5


class World:
    """`amnesia` restarts a crashed launcher under its old name: a planted bug."""

    def __init__(self, plan: Plan, *, verbose: bool = False, amnesia: bool = False) -> None:
        self.plan = plan
        self.verbose = verbose
        self.amnesia = amnesia
        self.asks_certainty = plan.on_silence == "stop"
        self.engine = Engine(plan.seed)
        names = tuple(f"n{place}.0" for place in range(plan.nodes))
        first = Configuration(1, 1, names, witness_of(names[0]) if plan.etcd else "")
        self.book = Book(first)
        self.coverage: Counter[str] = Counter()
        self.lines: list[str] = []
        self.hash = hashlib.sha256()
        self.blocked: Counter[tuple[int, int]] = Counter()  # (from, to), by place
        self.drops = Drops()
        self.lives = Counter(dict.fromkeys(range(plan.nodes), 1))
        self.steps = Steps(self.book, self.engine.rng, self.blocked)
        self.companion: Companion | None = None
        self.nodes: dict[int, Node] = {}
        self.beside: Bystander | Shelf | None = None
        if plan.witness or plan.etcd:
            kind = Bystander if plan.witness else Shelf
            self.beside = kind(plan.nodes, f"n{plan.nodes}.0")
        for place, name in enumerate(names):
            self._install(Node(name, place, plan.rates[place], self._register(name, first, 0.0)))

    def run(self) -> Outcome:
        for fault in self.plan.faults:
            self.engine.at(fault.at_s, self.strike, fault)
        end = self.plan.chaos_s + self.plan.quiet_s
        self.engine.at(self.plan.chaos_s, self._heal)
        violation = None
        try:
            while self.engine.now < end and self.engine.run_one():
                demand(self.engine.calls < MOST_CALLS, "I4", "the history does not end")
            alive(
                plan=self.plan,
                book=self.book,
                nodes=self.nodes.values(),
                beside=self.beside,
                coverage=self.coverage,
                end=end,
            )
        except Violation as found:
            violation = found
        except AssertionError as found:
            violation = Violation("assert", str(found))
        digest = self.hash.hexdigest()[:16]
        return Outcome(
            plan=self.plan, violation=violation, digest=digest, book=self.book,
            coverage=self.coverage, lines=self.lines,
        )  # fmt: skip

    # --------------------------------------------------------------------------- launchers

    def _register(
        self, name: str, configuration: Configuration, now: float
    ) -> Register | LeasedRegister:
        if self.plan.etcd:
            return LeasedRegister(own=name, configuration=configuration, now=now)
        return Register(
            own=name, configuration=configuration, now=now, on_silence=self.plan.on_silence
        )

    def _install(self, node: Node) -> None:
        self.nodes[node.place] = node
        self.engine.after(self.engine.rng.random() * 0.5, self._wake, node)
        self.engine.after(self.engine.rng.random() * self.plan.work_s, self._work, node)
        if not node.register.configuration.members:
            self._call(node)
        if self.plan.witness:
            self.engine.after(self.engine.rng.random() * CALL_S, self._greet, node)

    def feed(self, node: Node, event: Event) -> None:
        now = self.engine.now
        if not node.alive:
            return
        if now < node.paused_until:
            node.waiting.append(event)
            return
        self.hash.update(f"{now:.5f} {node.name} {type(event).__name__}".encode())
        effects = node.register.step(event, now * node.rate)
        for effect in effects:
            match effect:
                case To(node=to, message=message):
                    self.book.sent(node.name, message)
                    self.send(node, to, Heard(node.name, message))
                case Enrolled(configuration=configuration):
                    self._enrolled(node, configuration)
                case Request():
                    self.send(node, f"n{self.plan.nodes}.", (node.name, effect))
                case Elected(reason=reason):
                    self.coverage["election"] += 1
                    self._say(node, reason)
                case Cut(reason=reason):
                    self.coverage["cut off"] += 1
                    self._say(node, reason)
                    self._again(node, keeps=True)
        if self.asks_certainty and node.certain:
            self.book.certain(node.name)
        wake_at = node.register.deadline() / node.rate
        if wake_at < node.wake_at and node.alive:
            node.wake_at = wake_at
            self.engine.at(wake_at, self._wake, node, wake_at)

    def _wake(self, node: Node, planned_at: float = -1.0) -> None:
        if planned_at in (-1.0, node.wake_at):
            node.wake_at = float("inf")
            self.feed(node, Tick(self.engine.rng.random()))

    def _enrolled(self, node: Node, configuration: Configuration) -> None:
        self._say(node, f"knows {configuration}")
        self.book.decided(configuration)
        if self.companion is not None:
            self.companion.enrolled(node, configuration)
        alone = configuration.number > timeouts.LEAP
        self.coverage["sole survivor" if alone else "configuration"] += 1
        if node.name in configuration.members:
            return
        if node.leaving:
            node.alive = False
        elif node.register.own == node.name:
            self.coverage["left out"] += 1
            self._again(node, keeps=True)

    def _again(self, node: Node, *, keeps: bool) -> None:
        """The launcher goes on as somebody else; its replica may still have what it computed."""
        if not node.alive and keeps:
            return
        node.alive = False
        place = node.place
        if self.nodes[place] is not node:
            return
        name = f"n{place}.{self.lives[place]}"
        self.lives[place] += 1
        configuration = NOBODY
        if self.amnesia and not keeps:
            name = node.name
        register = self._register(name, configuration, self.engine.now * node.rate)
        new = Node(name, place, node.rate, register)
        if keeps:
            new.state, new.begun = node.state, node.begun
        self._say(new, "begins anew")
        self._install(new)

    def _call(self, node: Node) -> None:
        """A newcomer asks everybody until it is a member."""
        if node.alive and not node.register.configuration.members:
            for other in self.nodes.values():
                if other is not node:
                    self.send(node, other.name, Admit(node.name))
            self.engine.after(CALL_S, self._call, node)

    def _greet(self, node: Node) -> None:
        """Every launcher asks again and again whether the witness is there."""
        if node.alive:
            if self.engine.now >= node.paused_until:
                self.send(node, f"n{self.plan.nodes}.", Admit(node.name))
            self.engine.after(CALL_S, self._greet, node)

    # --------------------------------------------------------------------------- the network

    def send(self, node: Node | Bystander | Shelf, to: str, event: object) -> None:
        place = int(to[1 : to.index(".")])
        rng, plan = self.engine.rng, self.plan
        chaos = self.engine.now < plan.chaos_s
        lost = self.blocked[node.place, place] > 0 or (chaos and rng.random() < plan.loss)
        if lost or self.drops.take(node.place, event):
            self.coverage["lost"] += 1
            return
        copies = 2 if chaos and rng.random() < plan.duplicate else 1
        for _ in range(copies):
            delay_s = 0.0005 + self.engine.jitter(plan.delay_s)
            self.engine.after(delay_s, self._arrive, to, place, event)

    def _arrive(self, to: str, place: int, event: object) -> None:
        if place == self.plan.nodes:
            self._visit(to, event)
            return
        node = self.nodes[place]
        if node.name == to:
            if self.verbose and isinstance(event, Heard):
                self._say(node, f"gets {event.message} from {event.sender}")
            if isinstance(event, Heard | Admit | WitnessSeen | Answered):
                self.feed(node, event)
            elif self.companion is not None and self.engine.now >= node.paused_until:
                self.companion.hear(node, event)

    def _visit(self, to: str, event: object) -> None:
        """Something has come to the witness, or to etcd."""
        beside = self.beside
        if beside is None or not beside.alive:
            return
        if self.engine.now < beside.paused_until:
            self.engine.at(beside.paused_until, self._visit, to, event)
            return
        for reply in beside.receive(to, event, self.engine.now, self.book):
            self.coverage[reply.what] += 1
            self.send(beside, reply.to, reply.event)

    # --------------------------------------------------------------------------- faults

    def strike(self, fault: Fault) -> None:
        leading = [n.place for n in self.nodes.values() if n.alive and n.register.leads]
        by_configuration = [
            n.place for n in self.nodes.values() if n.name == self.book.newest.leader
        ]
        leader = (leading or by_configuration or [0])[-1]
        places = tuple(sorted({leader if p < 0 else p for p in fault.targets}))
        self.coverage[f"fault {fault.kind}"] += 1
        if self.verbose:
            self.lines.append(f"{self.engine.now:8.3f} FAULT {fault.kind} {places}")
        everywhere = [*self.nodes]
        beside = self.beside
        if beside is not None and fault.what != "launchers":
            everywhere.append(self.plan.nodes)
        others = [place for place in everywhere if place not in places]
        if beside is not None and self.plan.nodes in places and fault.kind not in ("cut", "oneway"):
            self._strike_beside(beside, fault)
            return
        match fault.kind:
            case "crash":
                for place in places:
                    self._crash(self.nodes[place], fault)
            case "pause":
                for place in places:
                    self._pause(self.nodes[place], fault.for_s)
            case "cut" | "oneway":
                pairs = [(a, b) for a in places for b in others]
                if fault.kind == "cut":
                    pairs += [(b, a) for a, b in pairs]
                self.blocked.update(pairs)
                self.engine.after(fault.for_s, self._unblock, pairs)
            case "leave":
                node = self.nodes[places[0]]
                if not node.register.leads:
                    node.leaving = True
                    for other in self.nodes.values():
                        self.feed(other, Part(node.name))
            case "drop":
                self.drops.add(fault, places)

    def _strike_beside(self, beside: Bystander | Shelf, fault: Fault) -> None:
        if fault.kind == "pause":
            beside.paused_until = self.engine.now + fault.for_s
        else:
            beside.crash()
            if fault.back_s and isinstance(beside, Bystander):
                self.engine.after(fault.back_s, beside.begin_anew)

    def _crash(self, node: Node, fault: Fault) -> None:
        if not node.alive:
            return
        node.alive = False
        if fault.proved:
            for other in self.nodes.values():
                self.engine.after(0.005 + self.engine.jitter(0.02), self._prove, node, other.place)
        if fault.back_s:
            self.engine.after(fault.back_s, self._again_dead, node)

    def _again_dead(self, node: Node) -> None:
        if self.nodes[node.place] is node:
            self._again(node, keeps=False)

    def _prove(self, dead: Node, place: int) -> None:
        node = self.nodes[place]
        if not self.blocked[place, dead.place] and not self.blocked[dead.place, place]:
            self.feed(node, Dead(dead.name))

    def _pause(self, node: Node, for_s: float) -> None:
        node.paused_until = max(node.paused_until, self.engine.now + for_s)
        self.engine.at(node.paused_until, self._resume, node)

    def _resume(self, node: Node) -> None:
        if self.engine.now < node.paused_until:
            return
        waiting, node.waiting = node.waiting, []
        for event in waiting:
            self.feed(node, event)
        node.wake_at = float("inf")
        self.feed(node, Tick(self.engine.rng.random()))

    def _unblock(self, pairs: list[tuple[int, int]]) -> None:
        self.blocked.subtract(pairs)

    def _heal(self) -> None:
        self.blocked.clear()
        self.drops.clear()
        if self.beside is not None:
            self.beside.paused_until = self.engine.now
        for node in self.nodes.values():
            if node.paused_until > self.engine.now:
                node.paused_until = self.engine.now
                self._resume(node)

    # --------------------------------------------------------------------------- the data plane

    def _work(self, node: Node) -> None:
        if not node.alive:
            return
        self.engine.after(self.plan.work_s * (0.5 + self.engine.rng.random()), self._work, node)
        if self.engine.now < node.paused_until:
            return
        configuration = node.register.configuration
        if self.steps.see(node, configuration) and self.plan.moves:
            self.feed(node, Moved(frozenset(configuration.members) - {node.name}))
        if node.name not in configuration.members:
            return
        if node.begun != configuration.number:
            if not self.steps.begin(node, configuration):
                return
            if self.companion is None or self.companion.settled(node):
                self.feed(node, Settled())
        if self.plan.data_apart or not self.steps.apart(node, configuration):
            self.steps.contribute(node, configuration, self.engine.now)

    def _say(self, node: Node, words: str) -> None:
        self.hash.update(words.encode())
        if self.verbose:
            self.lines.append(f"{self.engine.now:8.3f} {node.name} {words}")


def simulate(
    seed: int,
    *,
    verbose: bool = False,
    chaos_s: float = 20.0,
    drawn: Callable[[int, float], Plan] = draw,
) -> Outcome:
    return World(drawn(seed, chaos_s), verbose=verbose).run()
