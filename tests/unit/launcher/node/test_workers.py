"""A rank that has ended here gets another process, and nothing of the two is ever mixed.

Real processes speak to a real router, as workers do.
"""

import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from recoverrun.config.options import read
from recoverrun.config.run_config import parse_options
from recoverrun.launcher.node.workers import FORWARD_BYTES, LocalWorkers
from recoverrun.launcher.output.log_files import LogTree
from recoverrun.launcher.output.run_dir import make_private_dir
from recoverrun.launcher.output.run_folder import RunFolder
from rendezvous.protocol.arrival_messages import Held, StartAgain
from rendezvous.protocol.context_copies import unpacked
from rendezvous.protocol.formation_messages import Start
from rendezvous.protocol.hang_messages import Inspect
from rendezvous.protocol.incarnations import incarnation
from rendezvous.protocol.messages import (
    Committed,
    ContextBuffer,
    Exited,
    Farewell,
    Hello,
    Kill,
    Message,
    Notice,
    Stop,
)
from rendezvous.protocol.records import Record
from rendezvous.protocol.shared_memory import Writer, error_beside
from rendezvous.protocol.store_messages import StoreCall
from rendezvous.transport.station import Station

ATTEMPT = 2
PATIENCE_S = 60.0

# It says who it is, asks the store, repeats what it is told, and ends when it is told "end N".
SPEAKS = """
import os, sys, threading
from rendezvous.protocol.messages import Farewell, Hello, Notice
from rendezvous.protocol.store_messages import StoreCall
from rendezvous.protocol.worker_env import WorkerEnv
from rendezvous.transport.worker_link import WorkerLink

env = WorkerEnv.from_environ(os.environ)
link = WorkerLink(env.endpoint, env.rank, env.incarnation)
print(f"birth {env.birth}", flush=True)
if env.birth == 0:
    with open(env.error_file, "w") as file:
        file.write('{"message": "the first one failed"}')
with open(env.context, "wb") as file:
    pass
link.send(Hello(rank=env.rank, incarnation=env.incarnation, pid=os.getpid(), torch=""))
call = StoreCall(rank=env.rank, serial=0, generation=0, op="get", keys=("k",), values=(),
                 amount=0, timeout_s=600.0)
threading.Thread(target=link.call, args=(call, 600.0), daemon=True).start()
while True:
    message = link.receive(600.0)
    if isinstance(message, Notice) and message.reason.startswith("end"):
        link.close()
        os._exit(int(message.reason.split()[1]))
    if message is not None:
        link.send(message)
"""

Found = TypeVar("Found")


class Node:
    """The workers of one node, rank 4 and 5, and all that came of them."""

    def __init__(self, folder: Path) -> None:
        script = folder / "speaks.py"
        script.write_text(SPEAKS)
        line = ["--no-python", "--nproc-per-node", "2", "--redirects", "3", sys.executable, "-u"]
        options = read([*line, str(script)], {})
        assert options is not None
        config = parse_options(options, {})
        self.private = make_private_dir()
        self.station = Station()
        self.router = self.station.listen_ipc(self.private.socket)
        self.records: list[Record] = []
        self.up: list[Message] = []
        run_folder = RunFolder(folder / "run", "speaks", "1")
        self.run_dir = run_folder.path
        self.workers = LocalWorkers(
            config=config,
            start=Start(
                generation=1,
                node_rank=0,
                nnodes=1,
                first_rank=4,
                nproc=2,
                world_size=6,
                master_addr="127.0.0.1:1",
                nodes=("here",),
                attempt=ATTEMPT,
            ),
            station=self.station,
            router=self.router,
            run=run_folder,
            private=self.private,
            record=self.records.append,
            logs=LogTree(config, run_folder),
            inherited={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        self.workers.launch()

    def turn(self) -> None:
        ready = self.station.wait(0.05)
        now = time.monotonic()
        self.up += self.workers.listen(now)
        fds = {item for item in ready if isinstance(item, int)}
        self.up += self.workers.reap(fds, now, now)
        self.up += self.workers.tick(now)

    def until(self, condition: Callable[[], Found]) -> Found:
        """Turn the loop until something is so."""
        give_up_at = time.monotonic() + PATIENCE_S
        while not (found := condition()):
            assert time.monotonic() < give_up_at, self.up
            self.turn()
        return found

    def came(self, kind: type[Message], rank: int, born: int) -> Callable[[], bool]:
        number = incarnation(ATTEMPT, born)
        return lambda: any(
            isinstance(message, Hello | Exited)
            and (type(message), message.rank, message.incarnation) == (kind, rank, number)
            for message in self.up
        )

    def asked(self, rank: int) -> list[StoreCall]:
        return [call for call in self.workers.unanswered() if call.rank == rank]

    def say(self, rank: int, words: str) -> None:
        self.workers.deliver(rank, Notice(rank=rank, generation=1, event="test", reason=words))

    def lose(self, rank: int, born: int = 0) -> None:
        self.say(rank, "end 3")
        self.until(self.came(Exited, rank, born))

    def start_again(self, *ranks: int, birth: int = 1) -> None:
        start = StartAgain(ranks=ranks, birth=birth, often=1, reason="it was lost")
        self.up += self.workers.obey(start, time.monotonic())

    def pidfd(self, rank: int) -> int:
        """The descriptor of a process that is about to end, once it has and is not reaped yet."""
        pidfd = self.workers.processes.newest[rank].child.pidfd
        while not os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOWAIT | os.WNOHANG):
            self.station.wait(0.05)
            self.up += self.workers.listen(time.monotonic())
        return pidfd

    def close(self) -> None:
        now = time.monotonic()
        self.up += self.workers.stop(Stop(exit_code=1, reason="", root_rank=-1), now)
        self.up += self.workers.hurry(now)
        self.until(lambda: self.workers.left)
        self.workers.close(1.0)
        self.station.close()
        self.private.remove()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    try:
        for rank in (4, 5):
            node.until(node.came(Hello, rank, 0))
        yield node
    finally:
        node.close()


def test_a_rank_that_has_ended_gets_the_next_process_and_one_that_runs_goes_on(node: Node) -> None:
    before = node.workers.processes.pids
    node.lose(5)

    node.start_again(4, 5, 99)
    node.until(node.came(Hello, 5, 1))

    after = node.workers.processes.pids
    assert after[4] == before[4] and after[5] != before[5]
    started = [r.fields["incarnation"] for r in node.records if r.event == "worker.spawn"]
    assert started == [incarnation(ATTEMPT, birth) for birth in (0, 0, 1)]


def test_each_process_has_files_of_its_own(node: Node) -> None:
    node.lose(5)
    failed = node.workers.processes.stderr(5)
    node.start_again(5)
    node.until(node.came(Hello, 5, 1))

    (first,) = node.run_dir.glob("logs/*/attempt_0/1/stdout.log")
    (second,) = node.run_dir.glob("logs/*/attempt_0/1/return_1/stdout.log")
    assert (first.read_text(), second.read_text()) == ("birth 0\n", "birth 1\n")
    contexts = {Path(node.private.context(5, incarnation(ATTEMPT, birth))) for birth in (0, 1)}
    assert all(path.exists() for path in contexts) and len(contexts) == 2
    # Its second process runs: what failed is still the first one.
    assert node.workers.processes.stderr(5) == failed == first.with_name("stderr.log")
    assert node.workers.processes.error_file(5) == first.with_name("error.json")

    node.lose(5, born=1)

    assert node.workers.processes.stderr(5) == second.with_name("stderr.log")
    assert node.workers.processes.error_file(5) is None, (
        "it left none, and the first one's is not its own"
    )


def test_a_context_is_entrusted_at_the_top_where_others_come_back_and_at_each_commit(
    node: Node,
) -> None:
    """A node that is lost in the first step of a newcomer takes no context along."""
    shared = Writer(node.private.context(5, incarnation(ATTEMPT, 0)))
    held = Held(rank=5, generation=3, step=8)
    said = (committed(7), held, held, committed(8), committed(8))
    # Three contexts with the random streams of a rank that has two generators of its own.
    streams = 3 * random.Random(0).randbytes(25 << 10)
    assert len(streams) > FORWARD_BYTES

    entrusted = []
    for number, reached in enumerate(said):
        shared.write(streams + bytes([number]))
        entrusted.append(node.workers.context_buffer(reached))

    left = [one and [unpacked(context)[-1] for context in one.contexts] for one in entrusted]
    assert left == [[0], [1], None, [3], None]


def committed(step: int) -> Committed:
    return Committed(rank=5, generation=2, step=step, done=(), redone=(), total=2, digest="")


def test_what_the_former_process_was_to_be_told_or_had_asked_is_gone_with_it(node: Node) -> None:
    (asked,) = node.until(lambda: node.asked(5))
    node.lose(5)
    node.say(5, "for the one that is gone")

    node.start_again(5)
    assert not node.asked(5)
    node.say(5, "for the new one")
    (again,) = node.until(lambda: node.asked(5))
    node.until(lambda: any(isinstance(message, Notice) for message in node.up))

    assert again.serial != asked.serial
    heard = [message.reason for message in node.up if isinstance(message, Notice)]
    assert heard == ["for the new one"]


def test_a_kill_that_waits_for_stacks_never_hits_the_process_that_follows(node: Node) -> None:
    inspect = Inspect(hang=1, look=1, ranks=(5,), stacks=False)
    node.up += node.workers.obey(inspect, time.monotonic())
    kill = Kill(generation=2, ranks=(5,), births=(0,), reason="it hangs", hung=(5,))
    node.up += node.workers.obey(kill, time.monotonic())
    waits_until = node.workers.deadline()
    assert waits_until is not None, "the kill waits"
    # The signal that asks for its stacks ends a process that does not know it.
    node.up += node.workers.reap({node.pidfd(5)}, 0.0, time.monotonic())
    assert node.came(Exited, 5, 0)()

    node.start_again(5)
    node.up += node.workers.tick(waits_until + 1.0)
    node.until(node.came(Hello, 5, 1))

    assert not [r for r in node.records if r.event == "worker.kill"]


def test_a_good_end_that_is_not_told_yet_is_told_before_the_rank_begins_again(node: Node) -> None:
    node.say(5, "end 0")
    # Its farewell is missing, so its end waits to be told.
    node.up += node.workers.reap({node.pidfd(5)}, 0.0, time.monotonic())
    assert node.workers.deadline() is not None and not node.came(Exited, 5, 0)()

    node.start_again(5)

    kinds = [type(message) for message in node.up if isinstance(message, ContextBuffer | Exited)]
    assert kinds == [ContextBuffer, Exited]
    events = [r.event for r in node.records[-2:]]
    assert events == ["worker.exit", "worker.spawn"]
    node.until(node.came(Hello, 5, 1))


def test_nothing_begins_once_a_stop_was_ordered(node: Node) -> None:
    node.lose(5)
    now = time.monotonic()
    node.up += node.workers.stop(Stop(exit_code=1, reason="over", root_rank=-1), now)

    node.start_again(5)

    assert 5 not in node.workers.processes.pids
    assert len([r for r in node.records if r.event == "worker.spawn"]) == 2


def test_a_process_that_cannot_be_started_is_told_as_one_that_has_ended(node: Node) -> None:
    node.lose(5)
    (logs,) = node.run_dir.glob("logs/*/attempt_0/1")
    (logs / "return_1").write_text("no folder")

    node.start_again(5)

    assert node.came(Exited, 5, 1)()
    assert node.records[-1].reason.startswith("rank 5 cannot be started again: no files")
    assert 5 not in node.workers.processes.pids

    node.start_again(5, birth=2)
    node.until(node.came(Hello, 5, 2))


def test_the_farewell_of_a_former_process_is_not_that_of_the_new_one(node: Node) -> None:
    farewell = Farewell(rank=5, generation=1, step=7)
    node.workers.deliver(5, farewell)
    node.until(lambda: farewell in node.up)
    node.lose(5)
    node.start_again(5)
    node.until(node.came(Hello, 5, 1))

    node.say(5, "end 0")
    pid = node.workers.processes.pids[5]
    node.until(lambda: node.workers.deadline() is not None)

    assert not node.came(Exited, 5, 1)(), f"{pid} may have said more than was read"
    node.until(node.came(Exited, 5, 1))


def test_the_error_of_a_worker_whose_disk_is_full_is_told(node: Node) -> None:
    node.lose(5)
    node.start_again(5)
    node.until(node.came(Hello, 5, 1))
    context = node.private.context(5, incarnation(ATTEMPT, 1))
    Path(error_beside(context)).write_text('{"message": "no space left on device"}')

    node.lose(5, born=1)

    first, second = (one.error for one in node.up if isinstance(one, Exited))
    assert (first, second) == ("the first one failed", "no space left on device")


def test_a_node_has_finished_when_all_its_workers_have_ended_after_their_scripts(
    node: Node,
) -> None:
    for rank in (4, 5):
        farewell = Farewell(rank=rank, generation=1, step=7)
        node.workers.deliver(rank, farewell)
        node.until(lambda sought=farewell: sought in node.up)
    before = node.workers.processes.have_finished((4, 5))
    for rank in (4, 5):
        node.say(rank, "end 0")
        node.pidfd(rank)

    now = time.monotonic()
    told = node.workers.reap(None, now, now)

    assert not before and node.workers.processes.have_finished((4, 5))
    assert not node.workers.processes.have_finished((4, 5, 6)), "6 has never begun here"
    assert sorted(one.rank for one in told if isinstance(one, Exited)) == [4, 5]


def test_a_node_one_of_whose_workers_ended_before_its_script_has_not_finished(node: Node) -> None:
    farewell = Farewell(rank=4, generation=1, step=7)
    node.workers.deliver(4, farewell)
    node.until(lambda: farewell in node.up)
    for rank in (4, 5):
        node.say(rank, "end 0")
        node.until(node.came(Exited, rank, 0))

    assert not node.workers.processes.have_finished((4, 5))


def test_an_order_to_end_a_former_process_comes_too_late(node: Node) -> None:
    node.lose(5)
    node.start_again(5)
    node.until(node.came(Hello, 5, 1))
    kill = Kill(generation=2, ranks=(5,), births=(0,), reason="it left")

    assert node.workers.obey(kill, time.monotonic()) == []
    assert not [r for r in node.records if r.event == "worker.kill"]


def test_a_process_that_was_ended_before_it_began_never_begins(node: Node) -> None:
    node.lose(5)
    kill = Kill(generation=2, ranks=(5,), births=(1,), reason="its mate has ended")
    (exited,) = node.workers.obey(kill, time.monotonic())
    node.start_again(5)

    assert isinstance(exited, Exited) and exited.ours
    assert exited.incarnation == incarnation(ATTEMPT, 1)
    assert 5 not in node.workers.processes.pids
