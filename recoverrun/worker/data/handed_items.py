"""Generators that give on the items of a loop without a look at them, as their code shows.

    for obj in iterable:
        data_time.update(time.time() - end)
        yield obj

An item of theirs that is only passed need not be read. A name that is bound by the loop and read
nowhere but as it is given on tells so; code that may read any name (`locals()`) never does.
"""

import dis
from types import CodeType

READS_ANY = frozenset({"locals", "vars", "dir", "eval", "exec"})
"""Functions that may read a variable without naming it."""


def gives_on(code: CodeType, at: int) -> bool:
    """True if `code`, which asks for an item at offset `at`, does nothing but give it on."""
    if not READS_ANY.isdisjoint(code.co_names):
        return False
    steps = [one for one in dis.get_instructions(code) if one.opname != "CACHE"]
    asked = next((n for n, one in enumerate(steps) if one.offset == at), None)
    if asked is None or steps[asked].opname != "FOR_ITER":
        return False
    binds = steps[asked + 1]
    if binds.opname != "STORE_FAST":
        return False
    uses = [n for n, one in enumerate(steps) if _names(one, binds.argval) and one is not binds]
    return bool(uses) and all(_is_given_on(steps, n) for n in uses)


def _names(step: dis.Instruction, name: str) -> bool:
    """True of an instruction on this variable; one may be on two of them."""
    return step.argval == name or isinstance(step.argval, tuple) and name in step.argval


def _is_given_on(steps: list[dis.Instruction], n: int) -> bool:
    """True if instruction `n` loads what the next one gives on, by itself or in a tuple."""
    behind = [one.opname for one in steps[n + 1 : n + 3]]
    if not steps[n].opname.startswith("LOAD_FAST"):
        return False
    return behind[:1] == ["YIELD_VALUE"] or behind == ["BUILD_TUPLE", "YIELD_VALUE"]
