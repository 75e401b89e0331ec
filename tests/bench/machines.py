"""`python -m tests.bench.machines`: what the pure machines take where there are thousands.

CPU time of one process, without a socket. `tests/integration/test_many_launchers.py` runs the same
with fewer, so that nothing which grows with the square of the launchers comes back.
"""

import argparse
import time
from collections import deque
from collections.abc import Callable, Iterator

from rendezvous.consensus.acceptor import Acceptor
from rendezvous.consensus.configuration import Configuration
from rendezvous.consensus.paxos import Register
from rendezvous.consensus.register_events import Heard, To
from rendezvous.consensus.register_events import Tick as RegisterTick
from rendezvous.coordinator.coordinator import Coordinator, NodeLost, Received
from rendezvous.membership.formation import Formation, Formed, Joined
from rendezvous.protocol import codec
from rendezvous.protocol.effects import ToRank
from rendezvous.protocol.formation_messages import Join
from rendezvous.protocol.messages import (
    Committed,
    ContextBuffer,
    Decision,
    Report,
    Topology,
    Verdict,
)
from rendezvous.protocol.register_messages import Ping
from rendezvous.protocol.views import View
from tests.bench import machine


def _timed(work: Callable[[], None]) -> float:
    began = time.process_time()
    work()
    return 1000 * (time.process_time() - began)


def formation_ms(many: int) -> float:
    """Until every launcher has joined, asked once more, and got its place."""
    formation = Formation(
        nnodes=many, run_id="job", version="1", master_addr="h:1", timeout_s=600.0, begun_at=0.0
    )

    def join() -> None:
        found: list[object] = []
        for place in [*range(many), *range(many)]:
            join = Join(
                run_id="job", node=f"n{place}", incarnation=f"i{place}", node_rank=place, nproc=1,
                version="1",
            )  # fmt: skip
            found += formation.step(Joined(join), 0.0)
        assert any(isinstance(effect, Formed) for effect in found), "not formed"

    return _timed(join)


class Job:
    """A job of `many` replicas of one rank, one a node; protected once all have promised."""

    def __init__(self, many: int) -> None:
        self.many = many
        self.machine = Coordinator(world=tuple(range(many)))
        replicas = tuple((rank,) for rank in range(many))
        for message in (
            Topology(rank=0, generation=1, strategy="bench", replicas=replicas),
            ContextBuffer(rank=1, incarnation=0, contexts=(b"context",)),
        ):
            self.machine.step(Received(message=message), 0.0)

    def promise(self) -> float:
        """Milliseconds until all ranks have said what they can promise."""

        def promise() -> None:
            for rank in range(self.many):
                verdict = Verdict(
                    rank=rank, generation=1, promise="exact-samples", microbatches=1, reason="whole"
                )
                self.machine.step(Received(message=verdict), 0.0)

        return _timed(promise)

    def lose(self) -> float:
        """Milliseconds until the effects of a loss are there."""

        def lose() -> None:
            lost = NodeLost(node="n1", ranks=(1,), reason="gone")
            effects = self.machine.step(lost, 1.0)
            views = [e for e in effects if isinstance(e, ToRank) and isinstance(e.message, View)]
            assert len(views) == self.many - 1, f"{len(views)} views"

        return _timed(lose)

    def report(self) -> float:
        """Until all survivors have reported and are told what becomes of the step."""

        def report() -> None:
            effects = [
                effect
                for rank in self.machine.members.running
                for effect in self.machine.step(Received(message=_report(rank)), 1.1)
            ]
            told = [e for e in effects if isinstance(e, ToRank) and isinstance(e.message, Decision)]
            assert len(told) == self.many - 1, f"{len(told)} decisions"

        return _timed(report)

    def commit(self) -> float:
        """Until a step of the survivors is in the ledger."""

        def commit() -> None:
            effects = [
                effect
                for rank in self.machine.members.running
                for effect in self.machine.step(Received(message=_committed(rank, self.many)), 1.2)
            ]
            assert len(effects) >= 1, "no line in the ledger"

        return _timed(commit)


def _report(rank: int) -> Report:
    return Report(
        rank=rank, generation=2, step=0, phase="settle", microbatches=1, done=((rank, 0),),
        begun=(), reduced=0,
    )  # fmt: skip


def _committed(rank: int, many: int) -> Committed:
    return Committed(
        rank=rank, generation=2, step=0, done=((rank, 0),), redone=(), total=many, digest=""
    )


def pings_ms(many: int) -> float:
    """One ping of every launcher at the one that leads."""
    names = tuple(f"i{place}" for place in range(many))
    configuration = Configuration(1, 1, names)
    voters = {
        name: Register(own=name, configuration=configuration, now=0.0)
        for name in configuration.voters
    }
    leader = voters[names[0]]
    mail = deque((leader.own, effect) for effect in leader.step(RegisterTick(0.5), 0.1))
    while mail:
        sender, effect = mail.popleft()
        if isinstance(effect, To) and effect.node in voters:
            heard = voters[effect.node].step(Heard(sender, effect.message), 0.1)
            mail += ((effect.node, answer) for answer in heard)
    assert leader.leads, "nobody leads"
    ping = Ping(number=1, sent_at=0.0, undecided=False)

    def beat() -> None:
        for name in names[1:]:
            (pong,) = leader.step(Heard(name, ping), 0.2)
            assert isinstance(pong, To) and pong.node == name, f"{name} gets {pong}"

    return _timed(beat)


def configuration_ms(many: int) -> float:
    """To make and encode what is said of a configuration without one launcher."""
    configuration = Configuration(1, 1, tuple(f"{place:016x}" for place in range(many)))

    def change() -> None:
        told = Acceptor(configuration).announcements(
            configuration.following(configuration.leader, {configuration.members[7]}, [])
        )
        for message in set(map(id, told.values())):
            codec.encode(next(one for one in told.values() if id(one) == message))

    return _timed(change)


def measured(many: int) -> Iterator[tuple[str, float]]:
    job = Job(many)
    yield "formation", formation_ms(many)
    yield "promises", job.promise()
    yield "pings", pings_ms(many)
    yield "a configuration", configuration_ms(many)
    yield "a loss", job.lose()
    yield "reports", job.report()
    yield "a step", job.commit()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.machines")
    parser.add_argument("--many", type=int, nargs="+", default=[1000, 5000])
    args = parser.parse_args()
    machine.heading("machines", "CPU ms of what concerns all launchers once")
    rows = {many: dict(measured(many)) for many in args.many}
    names = list(next(iter(rows.values())))
    machine.table(
        ["launchers", *names],
        [[str(many), *(f"{row[name]:.0f}" for name in names)] for many, row in rows.items()],
    )


if __name__ == "__main__":
    main()
