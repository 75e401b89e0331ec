"""The knowledge that the worker has of the script and of the other ranks since the run began.

A fresh process has seen none of it. One table for both sides: what is read of a survivor at the top
of a step, and put into the process that takes a lost rank's place there.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any, Protocol

import torch

from ft_collectives.process_group.elastic import ElasticGroup
from recoverrun.worker.arrival.contents import Before
from recoverrun.worker.arrival.packing import CannotTravel, Packing, unpack
from recoverrun.worker.context.made_objects import MadeObjects
from recoverrun.worker.context.slot_context import key_of, told
from recoverrun.worker.errors import NotReachable
from recoverrun.worker.make_up.left_contexts import LeftContexts
from recoverrun.worker.make_up.taken_over import TakenOver
from recoverrun.worker.replay.data_sources import DataSources
from recoverrun.worker.replay.executor import Executor
from recoverrun.worker.rng.registry import REGISTRY
from recoverrun.worker.rng.streams import tensor_bytes
from recoverrun.worker.step.interfaces import Learns, Returns
from recoverrun.worker.step.take_over import PlaceTaker
from recoverrun.worker.step.worker_state import WorkerState
from recoverrun.worker.tracking.microbatches import Top


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceParts:
    """The parts of recovery in one worker of which a place is made."""

    worker: WorkerState
    driver: PlaceTaker
    executor: Executor
    left: LeftContexts
    make_up: Learns
    sources: DataSources
    verifier: Learns
    made: MadeObjects
    taken: TakenOver


class Gives(Returns, Protocol):
    """The interface of a process that has taken its place, and may give others theirs."""

    def know(self, before: Before, began_at: float | None = None) -> None:
        """The state as the run began, and when others began, by the wall clock; None: with it."""

    def meet(self, joined: Iterable[int]) -> None:
        """Note ranks that have come in one view with this process."""


class TakesSnapshots(Protocol):
    """The interface of snapshots to arrivals."""

    def told(self, top: Top) -> Any:
        """Plain values for msgpack: where snapshots stand at `top`. None if this rank takes none
        any more.
        """

    def comes(self, told: Any, frame: FrameType) -> None:
        """This process takes a lost rank's place. Of the script only its first lines have run, and
        `frame` is below it.
        """


APART = "the group of ranks {ranks} is none of the rank that told where the run stands"


@dataclass(frozen=True, slots=True)
class LearnedRow:
    """One row: plain values for msgpack."""

    read: Callable[[PlaceParts], Any]
    put: Callable[[PlaceParts, Any], None]


def _completed(parts: PlaceParts) -> dict[str, int]:
    """Operations of the groups that lose members, by the name of the group."""
    return {
        group.native.group_name: group.survivors.operations.completed
        for group in ElasticGroup.instances
        if group.survivors is not None
    }


def _complete(parts: PlaceParts, completed: Mapping[str, int]) -> None:
    """Raises NotReachable for a group with other members in which the donor is not."""
    for group in ElasticGroup.instances:
        if group.survivors is None:
            continue
        name = group.native.group_name
        if name in completed:
            group.survivors.operations.completed = completed[name]
        elif len(group.ranks) > 1:
            raise NotReachable(APART.format(ranks=", ".join(map(str, group.ranks))))


def _adopt(parts: PlaceParts, said: list[Any]) -> None:
    promise, steered = said
    parts.worker.guarantee.adopt(promise, steered=steered)


def _put_told(parts: PlaceParts, said: dict[str, Any]) -> None:
    parts.worker.runtime.gate.told = said


def _immaterial(parts: PlaceParts) -> list[Any]:
    by_loop = parts.executor.influence.immaterial
    return [[loop, sorted(map(told, keys), key=str)] for loop, keys in sorted(by_loop.items())]


def _put_immaterial(parts: PlaceParts, said: list[Any]) -> None:
    for loop, keys in said:
        parts.executor.influence.shown(loop, map(key_of, keys))


def _executes(parts: PlaceParts) -> list[Any]:
    executor = parts.executor
    return [executor.talked, executor.rewrites, executor.longest_s, executor.items.fed]


def _put_executes(parts: PlaceParts, said: list[Any]) -> None:
    executor, (talked, rewrites, longest_s, fed) = parts.executor, said
    executor.talked, executor.rewrites, executor.longest_s = talked, rewrites, longest_s
    executor.items.fed.update(fed)


def _heard(parts: PlaceParts) -> list[Any]:
    """The values that roots of broadcasts have sent; small tensors by their bytes."""
    told_of = []
    for names, said, *memory in parts.worker.call_sites.read():
        packing = Packing([])
        try:
            value = packing.pack(said)
        except CannotTravel:
            continue
        tensors = [[str(one.dtype), list(one.shape), tensor_bytes(one)] for one in packing.tensors]
        told_of.append([names, value, tensors, *memory])
    return told_of


def _put_heard(parts: PlaceParts, said: list[Any]) -> None:
    found = []
    for names, value, tensors, *memory in said:
        made = [_of_bytes(*one) for one in tensors]
        found.append([names, unpack(value, made), *memory])
    parts.worker.call_sites.put(found)


def _of_bytes(kind: str, shape: list[int], content: bytes) -> torch.Tensor:
    dtype: torch.dtype = getattr(torch, kind.removeprefix("torch."))
    if not content:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(content), dtype=dtype).reshape(shape)


LEARNED: dict[str, LearnedRow] = {
    "regions": LearnedRow(
        lambda parts: sorted(parts.worker.runtime.regions),
        lambda parts, said: parts.worker.runtime.regions.update(said),
    ),
    "trains": LearnedRow(
        lambda parts: sorted(parts.worker.runtime.training_loops),
        lambda parts, said: parts.worker.runtime.training_loops.update(said),
    ),
    "outward": LearnedRow(
        lambda parts: parts.worker.runtime.outward,
        lambda parts, said: parts.worker.runtime.outward.update(said),
    ),
    "told": LearnedRow(
        lambda parts: dict(parts.worker.runtime.gate.told),
        _put_told,
    ),
    "promise": LearnedRow(
        lambda parts: [parts.worker.guarantee.promise, parts.worker.guarantee.steered], _adopt
    ),
    "executes": LearnedRow(_executes, _put_executes),
    "immaterial": LearnedRow(_immaterial, _put_immaterial),
    "verified": LearnedRow(
        lambda parts: parts.verifier.learned(),
        lambda parts, said: parts.verifier.learn(said),
    ),
    "telling": LearnedRow(
        lambda parts: parts.make_up.learned(),
        lambda parts, said: parts.make_up.learn(said),
    ),
    "driver": LearnedRow(
        lambda parts: parts.driver.learned(), lambda parts, said: parts.driver.learn(said)
    ),
    "heard": LearnedRow(_heard, _put_heard),
    "proved": LearnedRow(
        lambda parts: parts.sources.proved.learned(),
        lambda parts, said: parts.sources.proved.learn(said),
    ),
    "completed": LearnedRow(_completed, _complete),
    "generators": LearnedRow(
        lambda parts: REGISTRY.numbers(), lambda parts, said: REGISTRY.renumber(said)
    ),
}


def read(parts: PlaceParts) -> dict[str, Any]:
    """All of it, in this process."""
    return {name: entry.read(parts) for name, entry in LEARNED.items()}


def put(parts: PlaceParts, learned: Mapping[str, Any]) -> None:
    """Into this process."""
    for name, entry in LEARNED.items():
        entry.put(parts, learned[name])
