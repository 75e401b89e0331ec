"""The store on several launchers: nothing that was answered is lost, nothing is done twice.

Clients count with `add` and repeat what was not answered. Leaders crash or are deposed without
noticing for a while, followers crash and newcomers become followers, over a network that loses,
repeats and overtakes. At the end the counter is the number of calls, and no two were told the same
sum.
"""

from collections.abc import Iterable

import pytest

from rendezvous.protocol import codec
from rendezvous.protocol.register_messages import Copied, Copy, Whole
from rendezvous.protocol.store_messages import StoreAnswer, StoreCall
from rendezvous.store import kv, replication
from rendezvous.store.replication import Replication
from tests.sim.engine import Engine
from tests.sim.mutants import Mutant, planted

CLIENTS, CALLS = 3, 12
AGAIN_S = 0.4
CHAOS_S, END_S = 8.0, 60.0


class Launcher:
    def __init__(self, job: "Job", name: str, *, founder: bool) -> None:
        self.job = job
        self.name = name
        self.replication = Replication(founder=founder)
        self.store = kv.Store()
        self.alive = True
        self.tick_at: float | None = None

    def feed(self, event: replication.Event) -> None:
        if not self.alive:
            return
        now = self.job.engine.now
        for effect in self.replication.step(event, now):
            match effect:
                case replication.To(node=node, message=message):
                    self.job.send(self.name, node, message)
                case replication.SendWhole():
                    self.job.send(self.name, effect.node, self._whole(effect))
                case replication.Release(answers=answers):
                    for answer in answers:
                        self.job.answer(answer)
                case replication.Apply(call=call):
                    self.store.step(kv.Called(_call(call)), now)
                case replication.Install(parts=parts):
                    answers = [_answer(frame) for part in parts for frame in part.answers]
                    keys = [key for part in parts for key in part.keys]
                    self.store = kv.Store.restored(parts[0].generation, keys, answers)
        self.tick_at = self.replication.deadline()
        if self.tick_at is not None:
            self.job.engine.at(self.tick_at, self._tick, self.tick_at)

    def _tick(self, planned_at: float) -> None:
        if planned_at == self.tick_at:
            self.feed(replication.Tick())

    def _whole(self, effect: replication.SendWhole) -> Whole:
        keys, answers = self.store.contents()
        return Whole(
            term=effect.term, index=effect.index, part=0, parts=1,
            generation=self.store.generation, keys=tuple(keys),
            answers=tuple(codec.encode(answer) for answer in answers),
        )  # fmt: skip

    def call(self, call: StoreCall) -> None:
        if self.alive and self.replication.leads:
            change = b"" if self.store.knows(call) else codec.encode(call)
            answers = tuple(self.store.step(kv.Called(call), self.job.engine.now))
            self.feed(replication.Done(call=change, superseded=0, answers=answers))


class Job:
    """The register of this model is an oracle: it knows who leads, launchers hear of it later."""

    def __init__(self, seed: int) -> None:
        self.engine = Engine(seed)
        rng = self.engine.rng
        self.loss = rng.choice((0.0, 0.05, 0.2))
        self.delay_s = rng.choice((0.001, 0.02, 0.1))
        self.launchers = {
            f"l{number}": Launcher(self, f"l{number}", founder=True)
            for number in range(rng.randint(2, 5))
        }
        self.members = sorted(self.launchers)
        self.term = 1
        self.serial = dict.fromkeys(range(CLIENTS), 0)
        self.sums: dict[tuple[int, int], int] = {}  # by client and serial
        self.tell()
        for client in range(CLIENTS):
            self.engine.after(rng.random() * 0.1, self.ask, client)
        for _ in range(rng.randint(1, 5)):
            self.engine.at(rng.random() * CHAOS_S, self.strike)

    @property
    def leader(self) -> Launcher:
        return self.launchers[self.members[0]]

    def run(self) -> None:
        while self.engine.now < END_S and self.engine.run_one():
            if len(self.sums) == CLIENTS * CALLS:
                return

    def tell(self) -> None:
        """Whoever leads knows at once, because it was elected; the others in their own time."""
        self.leader.feed(replication.Lead(self.term, tuple(self.members[1:])))
        for name in self.launchers:
            if name != self.members[0]:
                delay_s = self.engine.jitter(0.3)
                follow = replication.Follow(self.term, self.members[0])
                self.engine.after(delay_s, self.launchers[name].feed, follow)

    def strike(self) -> None:
        rng = self.engine.rng
        kind = rng.choice(("crash", "depose", "follower", "newcomer"))
        keepers = [m for m in self.members[1:] if self.able(m)]
        if kind == "newcomer":
            name = f"l{len(self.launchers)}"
            self.launchers[name] = Launcher(self, name, founder=False)
            self.members.append(name)
        elif kind == "follower" and len(self.members) > 1:
            gone = rng.choice(self.members[1:])
            self.launchers[gone].alive = rng.random() < 0.3
            self.engine.after(1.0, self.leave_out, gone)
            return
        elif kind in ("crash", "depose") and keepers:
            old = self.members.pop(0)
            self.launchers[old].alive = kind == "depose"
            keeper = rng.choice(keepers)
            self.members.remove(keeper)
            self.members.insert(0, keeper)
            self.term += 1
        self.tell()

    def able(self, name: str) -> bool:
        return self.launchers[name].alive and self.launchers[name].replication.complete

    def leave_out(self, gone: str) -> None:
        if gone in self.members[1:]:
            self.members.remove(gone)
            self.tell()

    def send(self, sender: str, to: str, message: Copy | Whole | Copied) -> None:
        rng = self.engine.rng
        chaos = self.engine.now < CHAOS_S
        if chaos and rng.random() < self.loss:
            return
        for _ in range(2 if chaos and rng.random() < 0.05 else 1):
            heard = replication.Heard(sender, message)
            self.engine.after(self.engine.jitter(self.delay_s), self.launchers[to].feed, heard)

    # --------------------------------------------------------------------------- clients

    def ask(self, client: int) -> None:
        """Ask, and ask again while there is no answer: sometimes whoever led before."""
        serial = self.serial[client]
        if serial == CALLS:
            return
        call = StoreCall(
            rank=client, serial=serial, generation=0, op="add", keys=("sum",), values=(), amount=1,
            timeout_s=5.0,
        )  # fmt: skip
        asked = [self.leader]
        if self.engine.rng.random() < 0.3:
            asked += [launcher for launcher in self.launchers.values() if launcher.alive]
        for launcher in asked:
            launcher.call(call)
        self.engine.after(AGAIN_S, self.again, client, serial)

    def again(self, client: int, serial: int) -> None:
        if self.serial[client] == serial:
            self.ask(client)

    def answer(self, answer: StoreAnswer) -> None:
        key = (answer.rank, answer.serial)
        known = self.sums.setdefault(key, answer.number)
        assert known == answer.number, f"{key} was told {known} and {answer.number}"
        if self.serial[answer.rank] == answer.serial:
            self.serial[answer.rank] += 1
            self.engine.after(self.engine.jitter(0.3), self.ask, answer.rank)


def _call(frame: bytes) -> StoreCall:
    call = codec.decode(frame)
    assert isinstance(call, StoreCall)
    return call


def _answer(frame: bytes) -> StoreAnswer:
    answer = codec.decode(frame)
    assert isinstance(answer, StoreAnswer)
    return answer


def broken(seeds: Iterable[int]) -> list[str]:
    wrong = []
    for seed in seeds:
        job = Job(seed)
        try:
            job.run()
            sums = sorted(job.sums.values())
            assert len(sums) == CLIENTS * CALLS, f"{len(sums)} calls were answered"
            assert sums == list(range(1, CLIENTS * CALLS + 1)), f"sums {sums}"
        except AssertionError as error:
            wrong.append(f"seed {seed}: {error}")
    return wrong


def test_whoever_dies_each_call_is_carried_out_once() -> None:
    wrong = broken(range(100))

    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("method", "old", "new"),
    [
        ("_release", "min(self.acked.values(), default=self.index)", "self.index"),
        ("_release", "self.held[0][0] <= least", "self.held[0][0] <= least + 1"),
        ("_lead", "self.acked.get(node, NOTHING)", "self.acked.get(node, 0)"),
        ("_forget", "self.held.clear()", "pass"),
        ("_confirm", "self.index if self.held_in == self.term else NOTHING", "self.index"),
    ],
)
def test_a_planted_bug_is_caught(method: str, old: str, new: str) -> None:
    with planted(Mutant(method, replication, f"Replication.{method}", old, new, "", 0)):
        assert broken(range(100))
