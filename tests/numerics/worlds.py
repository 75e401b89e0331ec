"""Small worlds of real processes over gloo, some of which die; the test is their coordinator.

A script is a function of this package that takes a `Member` and returns plain values. Members are
forked from a server that has imported torch once, so that a world costs a fraction of a second.
"""

import faulthandler
import functools
import itertools
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from ft_collectives.communicators.fabric import Fabric
from ft_collectives.communicators.limits import TimeLimits
from ft_collectives.process_group.elastic import ElasticGroup, as_one
from ft_collectives.process_group.substitution_policy import NO_POLICY, SubstitutionPolicy
from recoverrun.worker.groups import process_groups
from rendezvous.protocol.layout import Layout
from rendezvous.protocol.views import View

HERE = "127.0.0.1"
LONG_S = 600.0  # gloo's own timeout: longer than any test, so that nothing is saved by it

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    [
        "torch.distributed._functional_collectives",
        "torch.nn.parallel",
        "ft_collectives.process_group.elastic",
        "recoverrun.worker.groups.process_groups",
        "tests.numerics.elastic_scripts",  # found from the root of the project only
    ]
)


@dataclass
class Outcome:
    """The results of survivors, and the ranks that died."""

    results: dict[int, Any] = field(default_factory=dict)
    lost: list[int] = field(default_factory=list)
    left: list[int] = field(default_factory=list)  # whose script and process ended
    hints: list[str] = field(default_factory=list)
    members: list[tuple[int, ...]] = field(default_factory=list)  # of every generation


class Member:
    """One rank, as its script sees it."""

    def __init__(self, rank: int, size: int, connection: Connection, store: Any) -> None:
        self.rank = rank
        self.size = size
        self.changed = threading.Condition()
        self.view = View(generation=1, live=(), live_ranks=tuple(range(size)), losses=())
        self.fabric: Fabric | None = None
        self.over = threading.Event()
        self._connection = connection
        self._speak = threading.Lock()
        self._root = store
        self._stores: list[Any] = []
        self._protected = 0
        self._moments = 0
        threading.Thread(target=self._listen, daemon=True).start()

    def say(self, *message: Any) -> None:
        with self._speak:
            self._connection.send(message)

    def _listen(self) -> None:
        while True:
            view = self._connection.recv()
            if view is None:
                self.over.set()
                return
            with self.changed:
                self.view = view
                self.changed.notify_all()
            if self.fabric is not None:
                self.fabric.change(view)

    def _store(self, generation: int) -> Any:
        # A client of its own: one that waits for ever blocks nobody else's.
        store = c10d.PrefixStore(f"g{generation}", self._root.clone())
        self._stores.append(store)
        return store

    def build(self) -> Fabric:
        with self.changed:
            self.fabric = Fabric(
                rank=self.rank,
                view=self.view,
                store=self._store,
                changed=self.changed,
                limits=TimeLimits(lambda: timedelta(seconds=LONG_S)),
                on_hint=lambda generation, reason: self.say("hint", generation, reason),
            )
        return self.fabric

    def protect(self, policy: SubstitutionPolicy = NO_POLICY) -> Fabric:
        """Protect every group that is there, and all that are made later."""
        fabric = self.fabric or self.build()
        for group in ElasticGroup.instances:
            if not group.protected:
                group.protect(fabric, policy)
        layout = Layout(tuple((rank,) for rank in range(self.size)))
        process_groups.late(fabric, layout, policy)
        return fabric

    def await_generation(self, generation: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.view.generation >= generation, timeout=20)

    def leave(self, result: Any) -> None:
        """The script ends here, and the process with it."""
        assert self.fabric is not None, "protected"
        self.say("left", self.fabric.leave(), result)
        os._exit(0)

    def tell(self, word: str) -> None:
        self._root.set(word, "1")

    def await_word(self, word: str) -> None:
        self._root.wait([word])

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def die_at(self, moment: int) -> None:
        """Nine an operation: around the start and after the end of the agreement, data, vote."""
        fabric = self.fabric
        assert fabric is not None
        begin, finish = fabric.begin, fabric.finish

        def strike() -> None:
            if self._moments == moment:
                self.die()
            self._moments += 1

        def striking_begin(*arguments: Any) -> Any:
            strike()
            begun = begin(*arguments)
            strike()
            return begun

        def striking_finish(*arguments: Any) -> None:
            finish(*arguments)
            strike()

        fabric.begin, fabric.finish = striking_begin, striking_finish  # type: ignore[method-assign]


Script = Callable[..., Any]

_worlds = itertools.count()


@functools.cache
def _server() -> Any:
    """One for all worlds: a new listener may keep its first callers waiting for seconds."""
    return dist.TCPStore(HERE, 0, is_master=True, wait_for_workers=False)


def _live(
    connection: Connection,
    rank: int,
    size: int,
    meeting: tuple[int, int],
    script: Script,
    arguments: Any,
) -> None:
    faulthandler.dump_traceback_later(60, exit=True)
    torch.set_num_threads(1)
    port, world = meeting
    server = dist.TCPStore(HERE, port, is_master=False, timeout=timedelta(seconds=LONG_S))
    store = c10d.PrefixStore(f"world{world}", server)
    c10d._new_process_group_helper = process_groups.wrapping(c10d._new_process_group_helper)
    c10d._store_based_barrier = process_groups.store_barrier(c10d._store_based_barrier)
    for name in ("all_gather_object", "gather_object"):
        setattr(dist, name, as_one(getattr(dist, name)))
    dist.init_process_group(
        "gloo", store=c10d.PrefixStore("init", store.clone()), rank=rank, world_size=size
    )
    member = Member(rank, size, connection, store)
    store.set(f"up{rank}", "1")  # nobody dies before all have met
    store.wait([f"up{other}" for other in range(size)])
    try:
        member.say("result", script(member, *arguments))
    except Exception:  # whatever a script raises is the test's to see
        member.say("error", traceback.format_exc())
    member.over.wait(60)
    os._exit(0)


def run(script: Script, *arguments: Any, size: int = 4, within_s: float = 40.0) -> Outcome:
    """Run `script` on `size` ranks until all that live have returned; raises what one raised."""
    port, world = _server().port, next(_worlds)
    outcome = Outcome(members=[tuple(range(size))])
    connections: dict[int, Connection] = {}
    processes: dict[int, Any] = {}
    for rank in range(size):
        ours, theirs = _context.Pipe()
        processes[rank] = _context.Process(
            target=_live, args=(theirs, rank, size, (port, world), script, arguments), daemon=True
        )
        processes[rank].start()
        theirs.close()
        connections[rank] = ours
    try:
        _coordinate(processes, connections, outcome, time.monotonic() + within_s)
    finally:
        for rank, process in processes.items():
            process.kill()
            process.join(10)
            connections[rank].close()
    return outcome


def _coordinate(
    processes: dict[int, Any], connections: dict[int, Connection], outcome: Outcome, until: float
) -> None:
    def live() -> list[int]:
        return [rank for rank in sorted(processes) if rank not in outcome.lost]

    def here() -> list[int]:
        return [rank for rank in live() if rank not in outcome.left]

    def renew(losses: list[int]) -> None:
        outcome.members.append(tuple(live()))
        view = View(
            generation=len(outcome.members),
            live=(),
            live_ranks=tuple(live()),
            losses=tuple(losses),
            ended=tuple(sorted(outcome.left)),
        )
        for rank in here():
            with suppress(BrokenPipeError):  # dead as well: its sentinel tells
                connections[rank].send(view)

    while set(live()) - outcome.results.keys():
        waiting = {processes[rank].sentinel: rank for rank in here()}
        speaking = {connections[rank]: rank for rank in here()}
        ready = wait([*waiting, *speaking], timeout=until - time.monotonic())
        assert ready, f"stuck: only {sorted(outcome.results)} of {live()} are done"
        for one in ready:
            if isinstance(one, Connection) and not _hear(one, speaking[one], outcome):
                renew([])
        ends = [waiting[one] for one in ready if isinstance(one, int)]
        died = [rank for rank in ends if rank not in outcome.left]
        if died:
            outcome.lost += died
            renew(died)


def _hear(connection: Connection, rank: int, outcome: Outcome) -> bool:
    """Take a member's message; False if the members should meet again."""
    try:
        kind, *values = connection.recv()
    except (EOFError, ConnectionResetError):
        return True  # its sentinel tells the rest
    if kind == "error":
        raise AssertionError(f"rank {rank}:\n{values[0]}")
    if kind == "result":
        outcome.results[rank] = values[0]
    if kind == "left":
        generation, outcome.results[rank] = values
        outcome.left.append(rank)
        return bool(generation == len(outcome.members))  # else some may wait for it
    if kind == "hint":
        outcome.hints.append(values[1])
        return bool(values[0] != len(outcome.members))
    return True
