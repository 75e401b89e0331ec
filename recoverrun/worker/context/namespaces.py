"""Variables and attributes of the script, taken and put back around a re-execution."""

from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from recoverrun.worker.context.attached_state import ATTACHED
from recoverrun.worker.context.member_views import (
    Members,
)
from recoverrun.worker.context.module_data import ModuleData
from recoverrun.worker.context.module_state import FEW, among
from recoverrun.worker.context.object_members import contents, members, resolve
from recoverrun.worker.context.slot_context import Key, owners_of
from recoverrun.worker.context.values import FIXED, is_small_tensor
from recoverrun.worker.instrumentation import Loop

NUMBERS_BYTES = 512
"""The size of the largest tensor that is taken for numbers: 64 of them."""


def hold(names: dict[str, Any], bulk: Mapping[Key, Any]) -> None:
    """Give variables and attributes the large data that they had, by reference."""
    for key, value in bulk.items():
        if isinstance(key, str):
            names[key] = value
        elif (owner := resolve(names, key)) is not None:
            members(owner)[key[-1]] = value


def held(names: Mapping[str, Any], bulk: Mapping[Key, Any]) -> dict[Key, Any]:
    """The present values of the variables and attributes in `bulk`."""
    held: dict[Key, Any] = {}
    for key in bulk:
        if isinstance(key, str):
            held[key] = names.get(key)
        elif (owner := resolve(names, key)) is not None:
            held[key] = members(owner).get(key[-1])
    return held


def seen_by(loop: Loop, module: Mapping[str, Any], local: Mapping[str, Any]) -> dict[str, Any]:
    """The names that the body of `loop` may read: the module's variables, and those around it that
    it uses.

    Other variables of the function (a stopwatch, say) are nobody's business; what the header of the
    loop binds comes with its item. Plain values in a call that it goes over tell whose data these
    are.
    """
    if loop.module_level:
        return {name: value for name, value in module.items() if name not in loop.targets}
    read = loop.live_in - loop.targets
    read |= {name for name in loop.header_names if type(local.get(name)) in FIXED}
    return {**module, **{name: local[name] for name in read if name in local}}


def made_by(loop: Loop, local: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers that an iteration makes for itself, such as the count of its tokens: no
    microbatch reads them, but ranks may add them up after the backward.
    """
    if loop.module_level:
        return {}  # `seen_by` has all names of the module
    names = (loop.assigned - loop.live_in - loop.targets) & local.keys()
    return {name: local[name] for name in sorted(names) if _is_number(local[name])}


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) or (is_small_tensor(value, NUMBERS_BYTES) and value.is_cpu)


def reachable(
    data: ModuleData, module: Mapping[str, Any], local: Mapping[str, Any]
) -> dict[str, Any]:
    """The names in which paths begin, at a place where code of `module` runs."""
    return {**module, **local, **ATTACHED.names(), **data.beside(module)}


def around_of(loop: Loop, module: Mapping[str, Any], local: Mapping[str, Any]) -> dict[str, Any]:
    """The names in which the script's objects are looked for, apart from what an iteration makes.

    As at the top of the loop's body (`loop_tracker`), whether or not the body has a use for the
    name: an object that goes by several must be found by the same one each time.
    """
    if loop.module_level:
        return seen_by(loop, module, local)
    return {**module, **{name: value for name, value in local.items() if name not in loop.made}}


def modules_in(names: Mapping[str, Any], own: frozenset[str]) -> list[nn.Module]:
    """The modules that are found from these variables, also in objects of the modules `own`."""
    return among([names, *(members(owner) for _, owner in owners_of(names, own))])


def module_paths(names: Mapping[str, Any], own: frozenset[str]) -> Iterator[tuple[str, nn.Module]]:
    """These modules by path, also those within them. One that is held twice has two."""
    owners = [(path, contents(owner)) for path, owner in owners_of(names, own)]
    for path, namespace in [((), names), *owners]:
        for name, value in list(namespace.items()):
            held = list(enumerate(value[:FEW])) if type(value) in (list, tuple) else [("", value)]
            for place, one in held:
                if isinstance(one, nn.Module):
                    root = ".".join((*path, name)) + (f"[{place}]" if place != "" else "")
                    yield from one.named_modules(prefix=root)


def put_back(target: Members, saved: dict[str, Any]) -> None:
    for name in [name for name in list(target) if name not in saved]:
        del target[name]
    for name, value in saved.items():
        if target.get(name, saved) is not value:
            target[name] = value
