"""What the runtime can see of a process once the script has imported torch."""

from collections.abc import Mapping
from typing import Any

from recoverrun.hooks import iterators, ownrng, rng
from recoverrun.hooks.bulk import is_bulk
from recoverrun.hooks.context import (
    ATTRIBUTE_TENSOR_BYTES,
    CARRIED_TENSOR_BYTES,
    Key,
    Path,
    is_result,
    is_small_tensor,
    objects_of,
    state_of,
    values_of,
)


class TorchSenses:
    """Implements `runtime.Senses`."""

    def __init__(self) -> None:
        self._owners: list[tuple[Path, Any]] = []
        self._generators: dict[str, Any] = {}
        self._all: dict[Key, Any] = {}  # generators, also among the attributes
        self._iterators: list[str] = []  # variables of the module

    def streams(self, since: rng.Streams | None) -> rng.Streams:
        return rng.read(since)

    def hosts(self) -> dict[str, bytes]:
        return rng.read_hosts()

    def attributes(
        self,
        module: Mapping[str, Any],
        local: Mapping[str, Any],
        own: frozenset[str],
        look_again: bool,
    ) -> dict[Path, Any]:
        if look_again:
            visible = {**module, **local}
            self._owners = list(objects_of(visible, own))
            self._iterators = [n for n, v in module.items() if iterators.is_plain(v)]
            self._generators = {n: v for n, v in visible.items() if ownrng.is_generator(v)}
            self._all = dict(self._generators.items())
            for path, owner in self._owners:
                found = vars(owner).items()
                self._all.update({(*path, n): v for n, v in found if ownrng.is_generator(v)})
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
            attributes = vars(owner).items()
            held.update(
                {(*path, n): v for n, v in attributes if is_bulk(v, ATTRIBUTE_TENSOR_BYTES)}
            )
        return held

    def iterators(self, module: Mapping[str, Any], local: Mapping[str, Any]) -> dict[Key, Any]:
        held: dict[Key, Any] = {n: module[n] for n in self._iterators if n in module}
        held.update(local)
        for path, owner in self._owners:
            held.update({(*path, name): value for name, value in vars(owner).items()})
        return iterators.copies(held)

    def generators(self) -> dict[str, Any]:
        return values_of(self._generators) if self._generators else {}

    def left(self) -> dict[Key, tuple[Any, Any]]:
        return {key: (one, ownrng.state_of(one)) for key, one in self._all.items()}

    def seen(self) -> frozenset[int]:
        return frozenset(map(id, [*(owner for _, owner in self._owners), *self._all.values()]))

    def copied(self, value: Any) -> Any:
        if is_small_tensor(value) or is_result(value):
            return value.detach().clone()
        return value.copy() if type(value) in (list, dict, set) else value
