"""Broadcasts of the script, also those whose root is lost: sent by a survivor that knows the value.

Survivors do who have always held there what the root then said (`substitutes.CallSite`), and the
deputy of rank 0, if what is sent comes of code that it executes in rank 0's place
(`rank0_transformer`). Where nobody knows, all go on with what the root has always said there so
far, if it is a small thing and was always the same, and tell so. Else the call raises PeerLost on
all of them.
"""

import dis
import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from ft_collectives.communicators.errors import MembersChanged, PeerLost
from ft_collectives.communicators.script_modes import caller_of
from ft_collectives.process_group.elastic import ElasticGroup
from ft_collectives.process_group.results import completed
from ft_collectives.process_group.substitutes import (
    CallSite,
    ObjectCallSite,
    requiring_roots,
    roots_are_required,
    roots_are_substituted,
)
from recoverrun.worker.rank0 import failover
from recoverrun.worker.rank0.shared_values import named, within
from recoverrun.worker.step.worker_state import WorkerState

SPEAKS = "{}: in the place of lost rank {} this rank sends what is broadcast or scattered"
STEERS = (
    "what is broadcast or scattered at {} is made by rank {} in the place of lost rank {}: what "
    "that kept for it from step to step is lost, and what the script computes from it may differ"
)
GOES_ON = "{}: the value of lost rank {} is unknown; going on with the one it always sent: {}"

NUMBERS = (int, float, bool)

SIMPLE = (str, *NUMBERS, type(None))
"""Objects that can be compared with those of an earlier call."""


class Broadcasts:
    """Wraps `dist.broadcast` and `dist.broadcast_object_list`."""

    def __init__(self, worker: WorkerState) -> None:
        self._worker = worker
        self._told: set[str] = set()

    def broadcast(self, original: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(original)

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if roots_are_substituted() or roots_are_required() or self._arrives:
                return original(*args, **kwargs)
            group, root = called(signature, args, kwargs)
            if group is None:
                return original(*args, **kwargs)
            caller = caller_of(sys._getframe(1))
            tensor: Any = kwargs.get("tensor", args[0] if args else None)

            def speak(site: CallSite) -> Any:
                return original(*args, **kwargs)

            def put(usual: Any) -> bool:
                fits = bool(usual.shape == tensor.shape)
                if fits:
                    tensor.detach().copy_(usual)
                return fits

            call = Broadcast(original.__name__, group, root, tensor, speak, put)
            result = self._within(call, caller, CallSite)
            return completed([tensor]) if result is None and kwargs.get("async_op") else result

        return wrapper

    def objects(self, original: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(original)

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            group, root = called(signature, args, kwargs)
            if group is None or roots_are_substituted() or self._arrives:
                return original(*args, **kwargs)
            caller = caller_of(sys._getframe(1))
            said: Any = kwargs.get("object_list", args[0] if args else None)

            def speak(site: CallSite) -> Any:
                if site.done:
                    return _say(said, group, root, kwargs.get("device"))
                result = original(*args, **kwargs)
                site.usual_value.heard(
                    list(said) if all(type(one) in SIMPLE for one in said) else None
                )
                return result

            def put(usual: Any) -> bool:
                fits = len(usual) == len(said)
                if fits:
                    said[:] = usual
                return fits

            call = Broadcast(original.__name__, group, root, said, speak, put)
            return self._within(call, caller, ObjectCallSite)

        return wrapper

    @property
    def _arrives(self) -> bool:
        """True if this process is on its way to a lost rank's place: nobody is met."""
        return self._worker.runtime.winds is not None

    def _within(self, call: "Broadcast", caller: FrameType, kind: type[CallSite]) -> Any:
        group, root = call.group, call.root
        if is_torch_itself(caller):
            group.require(root, call.name)
            with requiring_roots():
                return call.speak(CallSite())
        where = f"{caller.f_code.co_filename}:{caller.f_lineno}"
        site = self._worker.call_sites.at(caller, kind)
        done = self.does(caller, call.said, group, root)
        site.call(done)
        try:
            with requiring_roots(site):
                result = call.speak(site)
        except PeerLost as error:
            usual, acting = site.usual_value.usual, self._worker.runtime.acting_rank is not None
            if usual is None or acting or call.alive or isinstance(error, MembersChanged):
                raise
            if not call.put(usual):
                raise
            self._tell(where, GOES_ON.format(where, group.ranks[root], usual))
            return None
        self.tell_substitute(site, caller, group, root, done=done)
        return result

    def tell_substitute(
        self,
        site: CallSite,
        caller: FrameType,
        group: ElasticGroup,
        root: int,
        *,
        done: bool = True,
    ) -> None:
        """Tell, once for each place, that this rank has sent what lost `root` would have sent;
        where it has `done` what makes that, the memory of `root` is not in it.
        """
        worker, lost = self._worker, group.ranks[root]
        if site.substitute != worker.env.rank:
            return
        where = f"{caller.f_code.co_filename}:{caller.f_lineno}"
        if done and worker.guarantee.exact and where not in self._told:
            self._told.add(where)
            place = f"{os.path.basename(caller.f_code.co_filename)}:{caller.f_lineno}"
            worker.guarantee.steer(STEERS.format(place, worker.env.rank, lost))
        else:
            self._tell(where, SPEAKS.format(where, lost))

    def _tell(self, where: str, sentence: str) -> None:
        if where not in self._told:
            self._told.add(where)
            self._worker.reporter.notice(sentence)

    def does(self, caller: FrameType, said: Any, group: ElasticGroup, root: int) -> bool:
        """True if this rank, as the deputy, has done to `said` what rank 0 does before it sends."""
        runtime = self._worker.runtime
        if not self.is_heard(group, root):
            return False
        done = False
        frame: FrameType | None = caller
        while frame is not None:
            here = [place for place in runtime.gate.places if within(frame.f_code, place)]
            for place in here:
                lone = runtime.gate.places[place]
                if place in runtime.gate.left and _names(frame, (*lone.writes, *lone.taints), said):
                    return False  # what it wanted to do there has failed
                if _names(frame, lone.writes, said):
                    if place in runtime.gate.missed or place in runtime.gate.undecided:
                        return False  # rank 0 was lost in the middle
                    done = True
            frame = frame.f_back
        return done

    def is_heard(self, group: ElasticGroup, root: int) -> bool:
        """True if this rank, as the deputy of rank 0, is heard in the place of `root`."""
        worker = self._worker
        if root or group.ranks[0] or not failover.is_deputy(worker):
            return False
        live = group.fabric.view.live_ranks if group.fabric is not None else ()
        return next((rank for rank in group.ranks if rank in live), None) == worker.env.rank


@dataclass(frozen=True, slots=True)
class Broadcast:
    """A broadcast of the script."""

    name: str
    group: ElasticGroup
    root: int  # its place in the group
    said: Any  # the tensor, or the list of objects
    speak: Callable[[CallSite], Any]
    put: Callable[[Any], bool]  # what its root usually says, if that fits

    @property
    def alive(self) -> bool:
        """True if its root is alive."""
        fabric = self.group.fabric
        return fabric is None or self.group.ranks[self.root] in fabric.view.live_ranks


def is_torch_itself(caller: FrameType) -> bool:
    """True if torch asks, to find its place in a group. Samplers ask for the script."""
    return str(caller.f_globals.get("__name__")).startswith("torch.distributed.")


def called(
    signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[ElasticGroup | None, int]:
    """The group of a call and its root's place there; None where torch itself must answer."""
    try:
        given = signature.bind(*args, **kwargs).arguments
    except TypeError:
        return None, 0
    group = given.get("group") or dist.GroupMember.WORLD
    if not isinstance(group, ElasticGroup):
        return None, 0
    source, place = given.get("src"), given.get("group_src")
    if place is None and source in group.ranks:
        place = group.ranks.index(source)
    if not isinstance(place, int) or not 0 <= place < len(group.ranks):
        return None, 0
    return group, place


def _say(said: Sequence[Any], group: ElasticGroup, root: int, device: Any) -> None:
    """Send as torch does on the root itself (`distributed_c10d.broadcast_object_list`)."""
    device = device or torch.device(c10d._get_object_coll_device(group))
    contents, sizes = zip(
        *[c10d._object_to_tensor(one, device, group) for one in said], strict=True
    )
    for whole in (torch.cat(sizes), torch.cat(contents)):
        dist.broadcast(whole, group_src=root, group=group)


def _names(frame: FrameType, names: Iterable[str], said: Any) -> bool:
    return any(
        _is(value, said) or _gives(frame, name, value, said)
        for name, value in ((name, named(frame, name)) for name in names)
    )


def _gives(frame: FrameType, name: str, value: Any, said: Any) -> bool:
    """True if the function gives this variable to a helper, which sends it within a list or a
    tensor of its own. A number or None may be the same by chance: the call has to read the
    variable.
    """
    if isinstance(said, torch.Tensor):
        if type(value) not in NUMBERS or said.numel() != 1:
            return False
        number = torch.tensor(value, dtype=said.dtype, device=said.device)
        if not torch.equal(said.detach().reshape(()), number):
            return False
    elif not isinstance(said, list) or not any(value is one for one in said):
        return False
    return type(value) not in SIMPLE or name.partition(".")[0] in _read_by(
        frame.f_code, frame.f_lasti
    )


@functools.lru_cache(maxsize=4096)
def _read_by(code: CodeType, call: int) -> frozenset[str]:
    """The names that are read in the lines of the call at this place of `code`."""
    known = [one for one in dis.get_instructions(code) if one.positions is not None]
    # A call is at its instruction, or at one of the caches that follow it.
    place = max((one for one in known if one.offset <= call), key=lambda one: one.offset).positions
    assert place is not None and place.lineno is not None, "calls have lines"
    lines = range(place.lineno, (place.end_lineno or place.lineno) + 1)
    return frozenset(
        str(one.argval)
        for one in known
        if one.opname.startswith("LOAD_") and one.positions and one.positions.lineno in lines
    )


def _is(value: Any, said: Any) -> bool:
    """True if they are the same list, or share their memory."""
    if not isinstance(value, torch.Tensor) or not isinstance(said, torch.Tensor):
        return value is said and isinstance(said, list)
    mine, sent = value.untyped_storage(), said.untyped_storage()
    return mine.data_ptr() == sent.data_ptr() != 0
