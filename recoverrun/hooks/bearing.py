"""Which variables and attributes of the script can bear on a microbatch's gradient."""

from typing import Any

from recoverrun.hooks.context import Key, is_framework, resolve
from recoverrun.hooks.relevance import Reads, reads_before_backward, sources_of
from recoverrun.hooks.runtime import ScriptRuntime, Turn
from recoverrun.hooks.script import Loop


class Bearing:
    """Asks the script's own text (`relevance`), and what was tried (`crossing`)."""

    def __init__(self, runtime: ScriptRuntime) -> None:
        self._runtime = runtime
        self._reads: tuple[frozenset[str], Reads | None] | None = None
        self.turn: Turn | None = None  # the present one
        self.immaterial: frozenset[Key] = frozenset()  # read, and shown to change no gradient

    def matters(self, key: Key, value: Any) -> bool:
        """May a microbatch depend on what is called so?"""
        shape, turn = self._runtime.shape, self.turn
        if key in self.immaterial:
            return False
        if shape is None or turn is None:
            return not isinstance(key, str) or type(value) is int
        reads = self._reads_of(shape.region)
        owner = None if isinstance(key, str) else resolve({**turn.globals, **turn.names}, key)
        if type(value) is float and is_framework(owner):
            return False  # as it differs between ranks, it is a time
        if reads is None or is_framework(owner):
            return not isinstance(key, str) or key in shape.region.live_in or type(value) is int
        if isinstance(key, str):
            return key.removesuffix("#") in reads.variables
        return key[-1].removesuffix("#") in reads.attributes

    def is_written(self, key: Key) -> bool:
        """May a microbatch change it before its backward, and depend on it?"""
        shape = self._runtime.shape
        reads = self._reads_of(shape.region) if shape is not None else None
        if shape is None or reads is None:
            return False
        if isinstance(key, str):
            return key in shape.region.carried and key in reads.variables
        return key[-1] in reads.written and self.matters(key, None)

    def _reads_of(self, region: Loop) -> Reads | None:
        """What is read before the backward of `region`, by the modules that are loaded now."""
        own = self._runtime.own_modules
        if self._reads is None or self._reads[0] != own:
            self._reads = own, reads_before_backward(region, sources_of(own))
        return self._reads[1]
