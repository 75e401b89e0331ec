"""What the runtime can see of a process once the script has imported torch."""

from collections.abc import Iterable, Mapping
from typing import Any

from recoverrun.hooks import iterators, rng
from recoverrun.hooks.bulk import is_bulk
from recoverrun.hooks.context import (
    ATTRIBUTE_TENSOR_BYTES,
    CARRIED_TENSOR_BYTES,
    Key,
    Path,
    owners_of,
    state_of,
)
from recoverrun.hooks.draws import Draw
from recoverrun.hooks.items import dicts_in, drawn_for, within
from recoverrun.hooks.members import members
from recoverrun.hooks.registry import REGISTRY
from recoverrun.hooks.values import is_result, is_small_tensor


class TorchSenses:
    """Implements `runtime.Senses`."""

    def __init__(self) -> None:
        self._owners: list[tuple[Path, Any]] = []
        self._iterators: list[str] = []  # variables of the module

    def streams(self) -> rng.Streams:
        return rng.read()

    def attributes(
        self,
        visible: Mapping[str, Any] | None,
        own: frozenset[str],
        given: Iterable[Any],
    ) -> dict[Path, Any]:
        if visible is not None:
            self._owners = list(owners_of(visible, own, dicts_in(given)))
            self._iterators = [n for n, v in visible.items() if iterators.is_plain(v)]
        return {
            (*path, name): value
            for path, owner in self._owners
            for name, value in state_of(owner).items()
        }

    def bulk(self, names: Mapping[str, Any]) -> dict[Key, Any]:
        held: dict[Key, Any] = {
            name: value for name, value in names.items() if is_bulk(value, CARRIED_TENSOR_BYTES)
        }
        for path, owner in self._owners:
            attributes = members(owner).items()
            held.update(
                {(*path, n): v for n, v in attributes if is_bulk(v, ATTRIBUTE_TENSOR_BYTES)}
            )
        return held

    def iterators(self, module: Mapping[str, Any], local: Mapping[str, Any]) -> dict[Key, Any]:
        held: dict[Key, Any] = {n: module[n] for n in self._iterators if n in module}
        held.update(local)
        for path, owner in self._owners:
            held.update({(*path, name): value for name, value in members(owner).items()})
        return iterators.copies(held)

    def seen(self) -> frozenset[int]:
        generators = REGISTRY.alive().values()
        return frozenset(map(id, [*(owner for _, owner in self._owners), *generators]))

    def drawn_for(self, iterable: Iterable[Any], draws: list[Draw]) -> list[Draw]:
        held = within(iterable)
        return drawn_for(held, draws) if held else []

    def copied(self, value: Any) -> Any:
        if is_small_tensor(value) or is_result(value):
            return value.detach().clone()
        return value.copy() if type(value) in (list, dict, set) else value
