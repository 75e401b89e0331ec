"""The observer of a process in which the script has imported torch."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from ft_collectives.communicators.script_modes import aside
from recoverrun.worker.context.changed_in_place import IN_PLACE
from recoverrun.worker.context.fingerprints import is_bulk
from recoverrun.worker.context.iterator_copy import copied_iterators, plain_iterators
from recoverrun.worker.context.object_members import contents, is_of_module, is_sampler
from recoverrun.worker.context.slot_context import (
    ATTRIBUTE_TENSOR_BYTES,
    CARRIED_TENSOR_BYTES,
    Key,
    Path,
    member,
    owners_of,
    states_in,
)
from recoverrun.worker.context.values import copied, is_result, is_simple, is_small_tensor
from recoverrun.worker.data.batch_substitution import dicts_in, draws_in, items_in_memory
from recoverrun.worker.data.source import Draw, RankAware
from recoverrun.worker.rng.registry import REGISTRY
from recoverrun.worker.rng.streams import Streams, read_streams

FIGURE_BYTES = 1 << 12
"""Of a tensor that a loop has left in a variable: a larger one is a batch, or a result."""

MOST_ITERATORS = 64
"""The number of iterators over loaders that are followed in one list of the script."""


class TorchObserver:
    """Implements `runtime.Observer`."""

    def __init__(self) -> None:
        self._owners: list[tuple[Path, Any]] = []
        self._iterators: list[str] = []  # variables of the module
        self._iterator_lists: list[list[Any]] = []

    @aside
    def streams(self) -> Streams:
        return read_streams()

    @aside
    def attributes(
        self,
        visible: Mapping[str, Any] | None,
        own: frozenset[str],
        given: Iterable[Any],
    ) -> dict[Path, Any]:
        if visible is not None:
            self._owners = list(owners_of(visible, own, dicts_in(given)))
            self._iterators = list(plain_iterators(visible))
        held = [(path, contents(owner)) for path, owner in self._owners]
        if visible is not None:
            spaces = [visible, *(inside for _, inside in held)]
            lists = {id(v): v for space in spaces for v in space.values() if _is_iterator_list(v)}
            self._iterator_lists = list(lists.values())
        return states_in(held)

    @aside
    def bulk(self, names: Mapping[str, Any]) -> dict[Key, Any]:
        held: dict[Key, Any] = {
            name: value for name, value in names.items() if is_bulk(value, CARRIED_TENSOR_BYTES)
        }
        for path, owner in self._owners:
            attributes = contents(owner).items()
            held.update(
                {
                    member(path, n): v
                    for n, v in attributes
                    if isinstance(v, RankAware) or is_bulk(v, ATTRIBUTE_TENSOR_BYTES)
                }
            )
        return held

    def look(self) -> None:
        IN_PLACE.look()

    def iterator_lists(self) -> list[tuple[list[Any], list[Any]]]:
        return [(one, one[:]) for one in self._iterator_lists]

    @aside
    def iterators(self, module: Mapping[str, Any], local: Mapping[str, Any]) -> dict[Key, Any]:
        held: dict[Key, Any] = {n: module[n] for n in self._iterators if n in module}
        held.update(local)
        for path, owner in self._owners:
            if not is_of_module(path):  # see `ModuleVariables`
                own = plain_iterators(contents(owner))
                held.update({member(path, n): v for n, v in own.items()})
        return copied_iterators(held)

    def seen(self) -> frozenset[int]:
        generators = REGISTRY.alive().values()
        owners = [one for _, one in self._owners if not is_sampler(one)]
        return frozenset(map(id, [*owners, *generators]))  # of samplers only a part is put back

    @aside
    def drawn_for(self, iterable: Iterable[Any], draws: list[Draw]) -> list[Draw]:
        held = items_in_memory(iterable)
        return draws_in(held, draws) if held else []

    @aside
    def copied(self, value: Any) -> Any:
        if is_small_tensor(value) or is_result(value):
            return value.detach().clone()
        return value.copy() if type(value) in (list, dict, set) else value

    @aside
    def left(self, bound: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
        figures = {name: v.detach() if is_result(v) else v for name, v in bound.items()}
        values = {
            name: one if isinstance(one, torch.Tensor) else copied(one)
            for name, one in figures.items()
            if is_simple(one) or is_small_tensor(one, FIGURE_BYTES)
        }
        return values, tuple(sorted(bound.keys() - values.keys()))


def _is_iterator_list(value: Any) -> bool:
    return type(value) is list and any(isinstance(one, RankAware) for one in value[:MOST_ITERATORS])
