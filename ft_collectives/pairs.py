"""Point to point messages, over a communicator of the two ranks alone.

A message is no transaction: the sender may be done long before the receiver looks, so it cannot be
sent again when the members change. Between two live ranks it does not have to be, if nobody else's
loss touches what connects them. So every pair of ranks that talks has a communicator of its own,
connected at its first message and never replaced; a message with a rank that is lost fails at once.

gloo's works of `send` and `recv` have no future and may block for ever. A thread waits for each of
them, and is left behind if the peer is lost; what it receives goes to private memory first.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from ft_collectives.c10d import Gloo, ProcessGroupGloo, Work, work_of
from ft_collectives.fabric import Fabric
from ft_collectives.faults import PeerLost
from rendezvous.messages import View

Call = Literal["send", "recv"]


@dataclass(slots=True, eq=False)
class Message:
    """One `call` under way; `future` ends when it does, by whoever takes `pending` away first."""

    call: Call
    targets: list[torch.Tensor]
    staged: list[torch.Tensor]
    tag: int
    future: Any = field(default_factory=torch.futures.Future)
    pending: bool = True


@dataclass(slots=True, eq=False)
class Pair:
    """What connects us with one peer. Messages wait in `backlog`, in order, until it does."""

    group: Gloo | None = None
    backlog: list[Message] = field(default_factory=list)
    under_way: list[Message] = field(default_factory=list)


class Pairs:
    """The pairs of this rank within one group; ranks are global."""

    def __init__(self, fabric: Fabric, name: str) -> None:
        self._fabric = fabric
        self._name = name
        self._lock = threading.Lock()
        self._pairs: dict[int, Pair] = {}
        self._abandoned: list[Pair] = []  # gloo may still be in them
        fabric.on_change.append(self._changed)

    def post(self, call: Call, tensors: Sequence[torch.Tensor], peer: int, tag: int) -> Work:
        """Begin to send to or receive from a live `peer`; the work ends with PeerLost's text if it
        dies before the message has passed.
        """
        staged = [t.detach().clone(memory_format=torch.contiguous_format) for t in tensors]
        message = Message(call=call, targets=list(tensors), staged=staged, tag=tag)
        with self._lock:
            if peer not in self._fabric.view.live_ranks:
                raise PeerLost(f"dist.{call}: rank {peer} is lost")
            pair = self._pairs.get(peer)
            if pair is None:
                pair = self._pairs[peer] = Pair()
                self._in_thread(self._connect, pair, peer)
            pair.under_way.append(message)
            if pair.group is None:
                pair.backlog.append(message)
            else:
                self._launch(pair, message, peer)
        return work_of(message.future)

    def _in_thread(self, target: Any, *args: Any) -> None:
        threading.Thread(target=target, args=args, name="recoverrun-pair", daemon=True).start()

    def _connect(self, pair: Pair, peer: int) -> None:
        low, high = sorted((self._fabric.rank, peer))
        try:
            store = self._fabric.store_of_pair(f"{self._name}/pair{low}-{high}")
            group = ProcessGroupGloo(
                store, int(self._fabric.rank == high), 2, timeout=self._fabric.timeout
            )
        except (RuntimeError, OSError) as failure:  # gloo and the store raise these
            with self._lock:
                if self._pairs.get(peer) is pair:
                    del self._pairs[peer]
            self._fail(pair, f"rank {peer} cannot be reached: {failure}")
            return
        with self._lock:
            pair.group = group
            for message in pair.backlog:
                self._launch(pair, message, peer)
            pair.backlog.clear()

    def _launch(self, pair: Pair, message: Message, peer: int) -> None:
        """In the order of the calls, which is how gloo matches messages of one tag."""
        other = int(peer > self._fabric.rank)
        try:
            work = getattr(pair.group, message.call)(message.staged, other, message.tag)
        except RuntimeError as failure:
            self._in_thread(self._end, pair, message, f"rank {peer}: {failure}")
            return
        self._in_thread(self._await, pair, message, work, peer)

    def _await(self, pair: Pair, message: Message, work: Work, peer: int) -> None:
        try:
            work.wait()
        except RuntimeError as failure:
            self._end(pair, message, f"rank {peer}: {failure}")
        else:
            self._end(pair, message, "")

    def _changed(self, view: View) -> None:
        """Messages with ranks that are lost have failed."""
        with self._lock:
            lost = {peer: p for peer, p in self._pairs.items() if peer not in view.live_ranks}
            for peer in lost:
                del self._pairs[peer]
            self._abandoned += lost.values()
        for peer, pair in lost.items():
            self._fail(pair, f"rank {peer} is lost")

    def _fail(self, pair: Pair, reason: str) -> None:
        for message in list(pair.under_way):
            self._end(pair, message, reason)

    def _end(self, pair: Pair, message: Message, failure: str) -> None:
        """Complete `message`, once. An empty `failure` means that it has passed."""
        with self._lock:
            if not message.pending:
                return
            message.pending = False
            pair.under_way.remove(message)
        if failure:
            message.future.set_exception(PeerLost(f"dist.{message.call}: {failure}"))
            return
        if message.call == "recv":
            for target, received in zip(message.targets, message.staged, strict=True):
                target.detach().copy_(received)
        message.future.set_result(message.targets)
