"""A process that goes back to what another one's script held, without the processes around them."""

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import msgpack

from recoverrun.worker.arrival import (
    loose_values,
    lost_entries,
    memory_places,
    plain_values,
    rebound_variables,
)
from recoverrun.worker.arrival.packing import Packing, unpack
from recoverrun.worker.context.object_graph import Holdings, holdings
from recoverrun.worker.snapshots import (
    computed_tensors,
    key_orders,
    large_values,
    references,
    shared_objects,
)
from recoverrun.worker.snapshots.references import References
from recoverrun.worker.snapshots.whole_values import WholeValues

NAME = "script_that_goes_back"
OWN = frozenset({NAME})
NONE = frozenset[str]()

Held = tuple[Holdings, loose_values.Spaces]


class Process:
    """One in which a script's module has run its first lines."""

    def __init__(self, text: str) -> None:
        self.module: Any = ModuleType(NAME)
        sys.modules[NAME] = self.module
        exec(compile(text, f"{NAME}.py", "exec"), vars(self.module))
        held = there, spaces = self.look()
        self.digests = plain_values.digests(there, of_process=True)
        self.digests |= rebound_variables.digests(spaces, of_process=True)
        self.marks, self.large = loose_values.marks(*held), large_values.marks(*held)
        self.addresses, self.keys = memory_places.seen(*held), lost_entries.keys_of(there)
        self.orders = key_orders.orders_of(there)
        self.references, self.whole = References(there, spaces, OWN), WholeValues(*held)
        self.places = references.places(*held)

    def look(self) -> Held:
        sys.modules[NAME] = self.module
        return holdings([], OWN, idle_hooks=False), [(f"<{NAME}>", vars(self.module))]

    def told(self) -> tuple[dict[str, Any], list[Any]]:
        """As `rank_image.made` does. Raises NotReachable."""
        held = there, spaces = self.look()
        packing, whole = Packing([]), set[str]()
        changed = plain_values.changed(
            there, self.digests, of_process=True, whole=whole, every=True
        )
        values = plain_values.pack(changed, packing)
        rebound = rebound_variables.changed(
            spaces, self.digests, NONE, of_process=True, packing=packing
        )
        rebound += rebound_variables.containers(spaces, self.digests, NONE, packing)
        large, variables = large_values.told(*held, self.large, NONE, packing, whole=whole)
        passed = self.references.is_of_new_module
        others, rest = self.whole.told(held, [], packing, whole=whole, passed=passed)
        values += [*large, *others]
        said = self.references.told(there, spaces, [], packing)
        loose = loose_values.told(*held, self.marks, NONE, packing, whole=whole)
        now = memory_places.seen(*held)
        manifest = {
            "values": values,
            "rebound": [*rebound, *variables, *rest],
            "references": said,
            "loose": loose,
            "lie": memory_places.unmoved([*values, *loose], self.addresses, now),
            "lost": lost_entries.told(there, self.keys),
            "shared": shared_objects.told(*held, OWN),
            "keys": key_orders.told(there, self.orders, packing),
            "computed": computed_tensors.told(*held, NONE, packing),
        }
        packed = msgpack.packb(manifest, use_bin_type=True)
        return msgpack.unpackb(packed, raw=False), [one.clone() for one in packing.tensors]

    def put(self, told: dict[str, Any], tensors: list[Any]) -> None:
        """As `restoring.Restoring` does. Raises NotReachable."""
        lie = {(path, name) for path, name in told["lie"]}
        putting = references.Putting(self.look, [], self.places, tensors, OWN)
        putting.put(told["references"])
        there, spaces = self.look()
        plain_values.put(told["values"], tensors, there, (), lie)
        rebound_variables.put(told["rebound"], tensors, spaces, [])
        lost_entries.take_away(told["lost"], there)
        there, spaces = self.look()
        loose = [(path, name, unpack(one, tensors)) for path, name, one in told["loose"]]
        anew = loose_values.put(there, spaces, loose, lie)
        rebound_variables.bind(anew, spaces, [])
        computed_tensors.put(told["computed"], tensors, (there, spaces), [], here=[])
        anew = shared_objects.put(told["shared"], *self.look(), OWN)
        rebound_variables.bind(anew, spaces, [])
        key_orders.put(told["keys"], self.look()[0])


def gone_back(text: str, train: Callable[[Any], None]) -> tuple[Any, Any]:
    """The modules of a process that has trained, and of one that has gone back to it. Raises
    NotReachable.
    """
    one = Process(text)
    train(one.module)
    told, tensors = one.told()
    other = Process(text)
    other.put(told, tensors)
    del sys.modules[NAME]
    return one.module, other.module
