"""Thousands of launchers in one process, as light as they can be: real sockets, no workers.

Each calls the coordinator as production does (own CURVE keys, the same options), joins, pings at
the production rhythm, and answers each View as its worker would. The few that vote have the
production machine (`Leadership`). A process is driven through a pipe; times are of CLOCK_MONOTONIC,
which all processes of a machine share.
"""

import resource
import select
import time
from collections import deque
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

import msgpack
import zmq

from recoverrun.launcher.leadership.leadership import Leadership
from recoverrun.launcher.network.frames import Envelope, opened
from recoverrun.version import __version__
from rendezvous.consensus.register_events import Dead
from rendezvous.coordinator.recovery_policy import USUAL
from rendezvous.coordinator.standing import Memory
from rendezvous.protocol import codec
from rendezvous.protocol.formation_messages import Beat, Join, Start
from rendezvous.protocol.heartbeat import heartbeat
from rendezvous.protocol.messages import (
    Committed,
    Decision,
    Exited,
    Message,
    Report,
    Topology,
    Verdict,
)
from rendezvous.protocol.register_messages import ConfigurationChange, Ping, Statement
from rendezvous.protocol.views import View
from rendezvous.transport.keys import JobKey
from rendezvous.transport.sockets import (
    CALL_MS,
    REMOTE_QUEUE,
    ClientIdentity,
    Socket,
    bound,
    keep_alive,
    send,
)

VOTERS = 4
"""Node ranks 1 to this have the register: with the coordinator they are the voters."""

STEPS = range(3)
"""Steps that every rank has committed before a coordinator is lost."""

CALLS_AT_ONCE = 20
"""In one turn of the loop, so that voters among these launchers keep their rhythm."""

CALL_AGAIN_S = 4.0
"""ZeroMQ does not call again where a handshake was answered wrongly, and does not say so to us."""

TICK_S = 0.05
RUN_ID = "scale"


@dataclass(slots=True)
class Launcher:
    """One of them."""

    node_rank: int
    caller: ClientIdentity
    socket: Socket
    second: Socket | None = None  # to whoever would coordinate next
    letters: deque[Message] = field(default_factory=deque)  # for it
    moved: bool = False  # that is the coordinator now
    joined: bool = False
    started: bool = False
    muted: bool = False
    reached_at: float = 0.0
    configuration: int = 1
    leadership: Leadership | None = None
    memory: Memory = field(default_factory=Memory)
    outbox: deque[bytes] = field(default_factory=deque)

    @property
    def name(self) -> str:
        return self.caller.incarnation


class Swarm:
    """The launchers with these node ranks, of a job of `many`."""

    def __init__(self, pipe: Connection, key: JobKey | None, ranks: range, many: int) -> None:
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        self._pipe = pipe
        self._key = key
        self._ranks = ranks
        self._many = many
        self._beat_s = heartbeat(many).beat_s
        self._context: zmq.Context[Socket] = zmq.Context(io_threads=1)
        self._context.set(zmq.MAX_SOCKETS, 4 * len(ranks) + 100)
        self._epoll = select.epoll()
        self._epoll.register(pipe.fileno(), select.EPOLLIN)
        self._by_fd: dict[int, Launcher] = {}
        self._by_rank: dict[int, Launcher] = {}
        self._seen: dict[tuple[str, int], list[float]] = {}  # (kind, number) -> when
        self._due: deque[tuple[float, Launcher]] = deque()
        self._leader = ""
        self._deputy = ""
        self._second = ""
        self._to_call: deque[Launcher] = deque()
        self._to_drop: deque[Launcher] = deque()  # whose coordinator is dead
        self._endpoint = ""
        self._ping = b""
        self._pinged_for = -1
        self._over = False

    def serve(self) -> None:
        while not self._over:
            ready = self._epoll.poll(TICK_S)
            for fd, _ in ready:
                if fd == self._pipe.fileno():
                    self._obey()
                elif fd in self._by_fd:
                    self._look(self._by_fd[fd])
            self._beat(time.monotonic())
            self._call_second()
            self._drop()
        self._context.destroy(linger=0)

    # --------------------------------------------------------------------------- commands

    def _obey(self) -> None:
        what, value = self._pipe.recv()
        if what == "call":
            self._call(value)
        elif what == "learn":
            replicas = tuple((rank,) for rank in range(self._many))
            rank = min(self._by_rank)
            topology = Topology(rank=rank, generation=1, strategy="scale", replicas=replicas)
            self._report(self._by_rank[rank], topology)
            for one in self._by_rank.values():
                self._report(one, promise(one.node_rank))
        elif what == "exit" and value in self._by_rank:
            self._pipe.send(time.monotonic())
            self._say(self._by_rank[value], Exited(
                rank=value, incarnation=0, node="n", code=-9, ours=False, error="", detected_s=0.0
            ))  # fmt: skip
        elif what == "second":
            self._deputy, port = value
            self._second = f"tcp://127.0.0.1:{port}"
            self._to_call = deque(self._by_rank.values())
        elif what == "greeted":
            callers = (one for one in self._by_rank.values() if one.second is not None)
            self._pipe.send(sum(not one.letters for one in callers))
        elif what == "commit":
            for one in self._by_rank.values():
                for committed in commits(one.node_rank, self._many):
                    self._report(one, committed)
        elif what == "dead":  # as the host of the coordinator would say to those who ask
            self._to_drop = deque(self._by_rank.values())
            for one in self._by_rank.values():
                if one.leadership is not None:
                    self._send(
                        one, one.leadership.tell_register(Dead(self._leader), time.monotonic())
                    )
                    self._look(one)
        elif what == "mute" and value in self._by_rank:
            self._by_rank[value].muted = True
        elif what == "count":
            self._pipe.send(len(self._seen.get(value, ())))
        elif what == "times":
            self._pipe.send(self._seen.pop(value, []))
        elif what == "stop":
            self._over = True

    def _call(self, port: int) -> None:
        """Everybody calls whoever listens there, and nobody else any more."""
        begun_at = time.monotonic()
        self._endpoint = f"tcp://127.0.0.1:{port}"
        callers = {rank: one.caller for rank, one in self._by_rank.items()}
        for one in self._by_rank.values():
            self._epoll.unregister(one.socket.FD)
            one.socket.close(linger=0)
        self._by_fd.clear()
        self._due.clear()
        for rank in self._ranks:
            caller = callers.get(rank) or ClientIdentity(self._key)
            socket = self._dial(caller, self._endpoint)
            one = Launcher(rank, caller, socket, reached_at=begun_at)
            self._by_rank[rank] = self._by_fd[socket.FD] = one
        for place, one in enumerate(self._by_rank.values()):
            self._look(one)
            # Spread over a beat, as launchers on machines of their own are.
            self._due.append((begun_at + self._beat_s * (1 + place / len(self._ranks)), one))
        self._pipe.send(begun_at)

    def _call_second(self) -> None:
        """Everybody calls another voter as well, as all call whoever may ever lead."""
        for _ in range(min(CALLS_AT_ONCE, len(self._to_call))):
            one = self._to_call.popleft()
            one.second = self._dial(one.caller, self._second)
            one.letters.append(Beat(node="", incarnation=one.name))  # so that it knows who calls
            self._by_fd[one.second.FD] = one

    def _drop(self) -> None:
        """Nobody calls again where the host has said that nobody is there."""
        for _ in range(min(CALLS_AT_ONCE, len(self._to_drop))):
            self._to_drop.popleft().socket.disconnect(self._endpoint)

    def _dial(self, caller: ClientIdentity, endpoint: str) -> Socket:
        socket = self._context.socket(zmq.DEALER)
        bound(socket, REMOTE_QUEUE)
        keep_alive(socket)
        socket.setsockopt(zmq.HANDSHAKE_IVL, CALL_MS)
        socket.setsockopt(zmq.IMMEDIATE, 1)
        socket.setsockopt(zmq.RECONNECT_IVL, 100)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
        caller.dress(socket)
        self._epoll.register(socket.FD, select.EPOLLIN)
        socket.connect(endpoint)
        return socket

    # --------------------------------------------------------------------------- one launcher

    def _look(self, one: Launcher) -> None:
        """Read and write what is possible: the descriptor says that something is, only once."""
        second = one.second
        while second is not None and (events := second.getsockopt(zmq.EVENTS)):
            if events & zmq.POLLIN:
                self._hear_second(one, second.recv_multipart(zmq.NOBLOCK))
            elif one.letters:
                send(second, [codec.encode(one.letters.popleft())])
            else:
                break
        while (events := one.socket.getsockopt(zmq.EVENTS)) & (zmq.POLLIN | zmq.POLLOUT):
            if events & zmq.POLLIN:
                self._hear(one, one.socket.recv_multipart(zmq.NOBLOCK))
            elif not one.joined:
                one.joined = True
                one.outbox.append(self._join(one))
            elif one.outbox:
                if not send(one.socket, [one.outbox.popleft()]):
                    break  # The connection has just ended.
            else:
                break

    def _say(self, one: Launcher, message: Message) -> None:
        one.outbox.append(codec.encode(message))
        self._look(one)

    def _report(self, one: Launcher, message: Message) -> None:
        """Its worker says so."""
        (one.memory if one.leadership is None else one.leadership).said(message)
        self._say(one, message)

    def _join(self, one: Launcher) -> bytes:
        return codec.encode(Join(
            run_id=RUN_ID, node=f"node-{one.node_rank}", incarnation=one.name,
            node_rank=one.node_rank, nproc=1, version=__version__, master=":1",
        ))  # fmt: skip

    def _hear(self, one: Launcher, frames: list[bytes]) -> None:
        now = time.monotonic()
        if one.muted:
            return
        if not one.started:
            self._start(one, frames)
            return
        content = msgpack.unpackb(frames[-1])
        kind = content["k"]
        if kind == "View":
            self._note("View", content["generation"], now)
            one.outbox.append(
                codec.encode(report(one.node_rank, content["generation"], content["generation"]))
            )
        elif kind == "Decision":
            self._note("Decision", content["generation"], now)
        elif kind == "ConfigurationChange":
            one.configuration = content["number"]
            self._note(kind, one.configuration, now)
        elif kind == "NewConfiguration":
            one.configuration = content["configuration"][0]
            self._note(kind, one.configuration, now)
        if one.leadership is not None:
            self._send(one, one.leadership.hear(self._leader, codec.decode(frames[-1]), now))

    def _hear_second(self, one: Launcher, frames: list[bytes]) -> None:
        """From the voter that is about to coordinate."""
        now = time.monotonic()
        message = codec.decode(frames[-1])
        if isinstance(message, ConfigurationChange):
            self._note("ConfigurationChange", message.number, now)
        if one.leadership is not None:
            self._send(one, one.leadership.hear(self._deputy, message, now))
        elif isinstance(message, ConfigurationChange):
            one.configuration, one.moved = message.number, True
            standing = tuple(map(codec.encode, one.memory.standing))
            one.letters.append(Statement(
                term=2, attempt=0, begun=True, part=0, parts=1, frames=standing
            ))  # fmt: skip
        if isinstance(message, View):
            self._note("View", message.generation, now)
            one.letters.append(report(one.node_rank, message.generation, STEPS.stop))
        elif isinstance(message, Decision):
            self._note("Decision", message.generation, now)

    def _start(self, one: Launcher, frames: list[bytes]) -> None:
        if msgpack.unpackb(frames[1])["k"] != "Start":
            return
        one.started = True
        now = time.monotonic()
        self._note("Start", 0, now)
        if one.node_rank <= VOTERS:
            _, message = opened(frames)
            assert isinstance(message, Start)
            self._leader = message.leader
            one.leadership = Leadership(own=one.name, chance=lambda: 0.5)
            self._send(one, one.leadership.join(message, policy=USUAL, several=True, now=now))

    def _join_again(self, one: Launcher, now: float) -> None:
        """Whoever has no place yet asks again, as the agent does; and calls again (`Dealer`)."""
        one.joined = False
        self._look(one)
        if one.joined:
            one.reached_at = now
        elif now > one.reached_at + CALL_AGAIN_S:
            one.reached_at = now
            one.socket.disconnect(self._endpoint)
            one.socket.connect(self._endpoint)

    def _send(self, one: Launcher, acts: object) -> None:
        for act in acts if isinstance(acts, list) else ():
            if isinstance(act, Envelope) and act.to == self._leader:
                one.outbox.append(codec.encode(act.message))
            elif isinstance(act, Envelope) and act.to == self._deputy:
                one.letters.append(act.message)

    def _note(self, kind: str, number: int, now: float) -> None:
        self._seen.setdefault((kind, number), []).append(now)

    def _beat(self, now: float) -> None:
        while self._due and self._due[0][0] <= now:
            at, one = self._due.popleft()
            if one.muted:
                continue
            self._due.append((max(at + self._beat_s, now), one))
            if not one.started:
                self._join_again(one, now)
            elif one.leadership is None:
                if one.configuration != self._pinged_for:
                    ping = Ping(number=one.configuration, sent_at=now, undecided=False)
                    self._ping, self._pinged_for = codec.encode(ping), one.configuration
                if one.second is not None and one.moved:
                    one.letters.append(Ping(number=one.configuration, sent_at=now, undecided=False))
                else:
                    one.outbox.append(self._ping)
                self._look(one)
        for rank in range(1, VOTERS + 1):
            voter = self._by_rank.get(rank)
            if voter is not None and voter.leadership is not None and not voter.muted:
                at = voter.leadership.deadline()
                if at is not None and at <= now:
                    self._send(voter, voter.leadership.tick(now))
                    self._look(voter)


def report(rank: int, generation: int, step: int) -> Report:
    """Of a worker that holds every bucket of its step."""
    return Report(
        rank=rank, generation=generation, step=step, phase="settle", microbatches=1,
        done=((rank, 0),), begun=(), reduced=generation - 1,
    )  # fmt: skip


def promise(rank: int) -> Message:
    """Of a worker whose first step is over: what is lost from now on is recovered from."""
    return Verdict(rank=rank, generation=1, promise="equal-count", microbatches=1, reason="bench")


def commits(rank: int, many: int) -> list[Message]:
    """Of a worker that has done `STEPS`, one microbatch in each."""
    return [
        Committed(
            rank=rank, generation=1, step=step, done=((rank, 0),), redone=(), total=many, digest=""
        )
        for step in STEPS
    ]


def main(pipe: Connection, key: JobKey | None, ranks: range, many: int) -> None:
    Swarm(pipe, key, ranks, many).serve()
