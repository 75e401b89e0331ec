"""What the runtime can see of a process once the script has imported torch."""

from collections.abc import Mapping
from typing import Any

from recoverrun.hooks import rng
from recoverrun.hooks.context import Path, attributes_of, is_small_tensor


class TorchSenses:
    """Implements `runtime.Senses`."""

    def streams(self) -> rng.Streams:
        return rng.read()

    def attributes(
        self, names: Mapping[str, Any], modules: frozenset[str]
    ) -> dict[Path, Any]:
        return attributes_of(names, modules)

    def copied(self, value: Any) -> Any:
        if is_small_tensor(value):
            return value.detach().clone()
        return value.copy() if type(value) in (list, dict, set) else value
