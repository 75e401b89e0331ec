"""The replicated store under the view register: both production machines on every launcher.

Leaders are whom the registers elect. Clients count with `add` and repeat what was not answered; no
call may be lost or done twice, whatever happens to launchers and network.
"""

from rendezvous.consensus.configuration import Configuration
from rendezvous.protocol import codec
from rendezvous.protocol.register_messages import Whole
from rendezvous.protocol.store_messages import StoreAnswer, StoreCall
from rendezvous.store import kv, replication
from rendezvous.store.replication import Replication
from tests.sim.mutants import Mutant, planted
from tests.sim.views.liveness import PROGRESS_S
from tests.sim.views.node import Node
from tests.sim.views.plan import draw
from tests.sim.views.world import World

CLIENTS, CALLS = 2, 25
AGAIN_S, BETWEEN_S = 0.5, 0.5


class Stores:
    """A follower and a store beside each register, and the clients."""

    def __init__(self, seed: int) -> None:
        self.world = World(draw(seed))
        self.world.companion = self
        self.followers: dict[str, Replication] = {}
        self.stores: dict[str, kv.Store] = {}
        self.serial = dict.fromkeys(range(CLIENTS), 0)
        self.sums: dict[tuple[int, int], int] = {}
        self.answered_at = 0.0
        for node in self.world.nodes.values():
            self.enrolled(node, node.register.configuration)
        for client in range(CLIENTS):
            self.world.engine.after(0.3, self._ask, client)

    # --------------------------------------------------------------------------- the composition

    def enrolled(self, node: Node, configuration: Configuration) -> None:
        if node.name not in configuration.members:
            return
        if configuration.leader == node.name:
            others = tuple(name for name in configuration.store_holders if name != node.name)
            self._feed(node, replication.Lead(configuration.term, others))
        else:
            self._feed(node, replication.Follow(configuration.term, configuration.leader))

    def settled(self, node: Node) -> bool:
        return self._replication(node).complete

    def hear(self, node: Node, event: object) -> None:
        assert isinstance(event, replication.Heard), f"{event} is of no follower"
        self._feed(node, event)

    def _replication(self, node: Node) -> Replication:
        if node.name not in self.followers:
            founder = node.name in self.world.book.configurations[1].store_holders
            self.followers[node.name] = Replication(founder=founder)
            self.stores[node.name] = kv.Store()
        return self.followers[node.name]

    def _feed(self, node: Node, event: replication.Event) -> None:
        if not node.alive:
            return
        engine = self.world.engine
        machine = self._replication(node)
        for effect in machine.step(event, engine.now):
            match effect:
                case replication.To(node=to, message=message):
                    self.world.send(node, to, replication.Heard(node.name, message))
                case replication.SendWhole(node=to):
                    whole = self._whole(effect, self.stores[node.name])
                    self.world.send(node, to, replication.Heard(node.name, whole))
                case replication.Release(answers=answers):
                    for answer in answers:
                        self._answer(answer)
                case replication.Apply(call=call):
                    self.stores[node.name].step(kv.Called(_call(call)), engine.now)
                case replication.Install(parts=parts):
                    answers = tuple(_answer(frame) for part in parts for frame in part.answers)
                    keys = [key for part in parts for key in part.keys]
                    store = kv.Store.restored(parts[0].generation, keys, answers)
                    self.stores[node.name] = store
        deadline = machine.deadline()
        if deadline is not None:
            engine.at(deadline, self._tick, node, deadline)

    def _tick(self, node: Node, planned_at: float) -> None:
        if self._replication(node).deadline() == planned_at:
            if self.world.engine.now < node.paused_until:
                self.world.engine.at(node.paused_until, self._tick, node, planned_at)
            else:
                self._feed(node, replication.Tick())

    def _whole(self, effect: replication.SendWhole, store: kv.Store) -> Whole:
        keys, answers = store.contents()
        return Whole(
            term=effect.term, index=effect.index, part=0, parts=1,
            generation=store.generation, keys=tuple(keys),
            answers=tuple(codec.encode(answer) for answer in answers),
        )  # fmt: skip

    # --------------------------------------------------------------------------- clients

    def _ask(self, client: int) -> None:
        serial = self.serial[client]
        if serial == CALLS:
            return
        call = StoreCall(
            rank=client, serial=serial, generation=0, op="add", keys=("sum",), values=(), amount=1,
            timeout_s=5.0,
        )  # fmt: skip
        engine = self.world.engine
        for node in list(self.world.nodes.values()):
            awake = node.alive and engine.now >= node.paused_until
            if awake and self._replication(node).leads:
                store = self.stores[node.name]
                change = b"" if store.knows(call) else codec.encode(call)
                answers = tuple(store.step(kv.Called(call), engine.now))
                self._feed(node, replication.Done(call=change, superseded=0, answers=answers))
        engine.after(AGAIN_S, self._again, client, serial)

    def _again(self, client: int, serial: int) -> None:
        if self.serial[client] == serial:
            self._ask(client)

    def _answer(self, answer: StoreAnswer) -> None:
        key = (answer.rank, answer.serial)
        self.answered_at = self.world.engine.now
        known = self.sums.setdefault(key, answer.number)
        assert known == answer.number, f"I1: {key} was told {known} and {answer.number}"
        if self.serial[answer.rank] == answer.serial:
            self.serial[answer.rank] += 1
            self.world.engine.after(BETWEEN_S, self._ask, answer.rank)

    def judge(self) -> str:
        """The fault of this history, or ""."""
        outcome = self.world.run()
        if outcome.violation is not None:
            return str(outcome.violation)
        sums = sorted(self.sums.values())
        if len(set(sums)) < len(sums):
            return f"two calls were told the same sum: {sums}"
        if not outcome.coverage["liveness checked"]:
            return ""
        late_s = self.world.engine.now - self.answered_at
        if len(sums) < CLIENTS * CALLS and late_s > PROGRESS_S:
            return f"{len(sums)} of {CLIENTS * CALLS} calls were answered, none for {late_s:.1f} s"
        # At the end of a history a call may be carried out and its answer on the way.
        lost = set(range(1, len(sums) - CLIENTS)) - set(sums)
        return f"sums {sorted(lost)} were told to nobody" if lost else ""


def _call(frame: bytes) -> StoreCall:
    call = codec.decode(frame)
    assert isinstance(call, StoreCall), f"{call} is no call"
    return call


def _answer(frame: bytes) -> StoreAnswer:
    answer = codec.decode(frame)
    assert isinstance(answer, StoreAnswer), f"{answer} is no answer"
    return answer


def broken(seeds: range) -> list[str]:
    wrong = [(seed, Stores(seed).judge()) for seed in seeds]
    return [f"seed {seed}: {words}" for seed, words in wrong if words]


def test_whom_the_registers_elect_loses_no_call() -> None:
    wrong = broken(range(150))

    assert not wrong, "\n".join(wrong)


def test_answers_that_do_not_wait_for_followers_are_noticed() -> None:
    early = ("min(self.acked.values(), default=self.index)", "self.index")

    with planted(Mutant("early", replication, "Replication._release", *early, "", 0)):
        assert broken(range(40))
