"""A newcomer that is told what a donor holds, without the processes around them."""

import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import msgpack

from recoverrun.worker.arrival import loose_values, made_places, plain_values, structure
from recoverrun.worker.arrival.contents import Before
from recoverrun.worker.arrival.packing import Packing, unpack
from recoverrun.worker.arrival.value_places import Spaces
from recoverrun.worker.context.object_graph import Holdings, holdings
from recoverrun.worker.context.passed_over import NOTHING, PassedOver

SPACE = "<train>"

Variables = dict[str, Any]


def own_module(name: str, text: str) -> ModuleType:
    """A module of the script's, with this text."""
    made = ModuleType(name)
    sys.modules[name] = made
    exec(compile(text, f"{name}.py", "exec"), vars(made))
    return made


class Script:
    """The variables of a function, in one process; those that are `passed` are told to nobody."""

    def __init__(
        self, variables: Variables, own: frozenset[str], passed: PassedOver = NOTHING
    ) -> None:
        self.variables, self.own, self.passed = variables, own, passed
        there, spaces = self.look()
        self.before = Before(
            plain_values.digests(there),
            frozenset(),
            loose_values.marks(there, spaces),
            structure.seen(there, spaces, own),
        )

    def look(self, passed: PassedOver = NOTHING) -> tuple[Holdings, Spaces]:
        there = holdings([self.variables], self.own, idle_hooks=False, passed=passed)
        seen = {name: one for name, one in self.variables.items() if name not in passed.variables}
        return there, [(SPACE, seen)]

    def told(
        self, data: frozenset[int] = frozenset(), bound: frozenset[str] = frozenset()
    ) -> tuple[bytes, Packing]:
        there, spaces = self.look(self.passed)
        packing, whole = Packing([]), set[str]()
        entries = plain_values.changed(there, self.before.digests, data, whole=whole)
        values = plain_values.pack(entries, packing)
        loose = loose_values.changed_in_place(
            there,
            spaces,
            before=self.before.marks,
            bound=bound,
            data=data,
            packing=packing,
            whole=whole,
        )
        now = structure.seen(there, spaces, self.own, data)
        rest = structure.told(now, self.before.structure, there, bound)
        made = structure.made(
            now, self.before.structure, (there, spaces), own=self.own, data=data, bound=bound
        )
        return bytes(msgpack.packb([values, loose, rest, made])), packing

    def put(self, packed: bytes, packing: Packing) -> None:
        values, loose, rest, made = msgpack.unpackb(packed, raw=False)
        tensors = [one.clone() for one in packing.tensors]
        made_places.make(made, *self.look(), self._bind)
        there, spaces = self.look()
        plain_values.put(values, tensors, there)
        unpacked = ((path, name, unpack(one, tensors)) for path, name, one in loose)
        for _, name, value in loose_values.put_in_place(there, spaces, unpacked):
            self.variables[name] = value
        structure.put(rest, self.before.structure, self.look, self.own, self._bind)

    def _bind(self, space: str, name: str, value: Any) -> None:
        assert space == SPACE, "there is no other"
        self.variables[name] = value


def arrives(
    make: Callable[[], Variables],
    change: Callable[[Variables], None],
    own: frozenset[str] = frozenset(),
    passed: PassedOver = NOTHING,
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The variables of a donor, which a script has made and changed, and those of a newcomer.

    Raises NotReachable.
    """
    donor, newcomer = Script(make(), own, passed), Script(make(), own)
    change(donor.variables)
    newcomer.put(*donor.told())
    return donor.variables, newcomer.variables
