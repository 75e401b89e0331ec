"""What modules of the project know of a rank: `RANK = int(os.environ["RANK"])` in `common.py`.

The module around a microbatch's loop is the business of `context`. Variables of the project's other
modules, and attributes of its objects there, are compared between ranks once, before the first
proof. What differs belongs to a slot, as variables of the script do: all ranks tell each other, and
code that is executed as another rank finds that rank's. A rank's share of the data may be among it.
"""

import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from recoverrun.hooks.bulk import mark_of
from recoverrun.hooks.clones import NotReplayable
from recoverrun.hooks.context import CODE, Key, belongs_to_process, key_of, owners_of, told
from recoverrun.hooks.lost import named
from recoverrun.hooks.members import Members, members, resolve
from recoverrun.hooks.shares import packed, size_of, travels, unpacked
from recoverrun.hooks.values import is_simple

MOST_BYTES = 16 << 20
"""Of all that one rank tells."""

MOVED = "{module}.{name} differs between ranks, and is not what it was as they told each other"

Where = tuple[str, Key]
"""A module, and a variable of it or an attribute that is reached from one."""

Tell = Callable[[dict[str, Any]], Mapping[int, dict[str, Any]]]


class Constants:
    """Those of this rank and of the others of its shard position, as they told each other."""

    def __init__(self) -> None:
        self._own: dict[Where, int] = {}  # what differs, by what it was here
        self._theirs: dict[int, list[Any]] = {}  # by rank, in the order of `_own`

    def exchange(self, modules: Iterable[str], tell: Tell) -> None:
        """All ranks enter. What is too much, or cannot travel, is told by nobody."""
        mine = {where: _digest(value) for where, value in _found(modules)}
        words = [[module, told(key), crc] for (module, key), crc in mine.items()]
        heard = [
            {(module, key_of(key)): crc for module, key, crc in one["constants"]}
            for one in tell({"constants": words}).values()
        ]
        known = set(mine).intersection(*heard)
        differing = sorted(
            (where for where in known if len({one[where] for one in heard}) > 1), key=str
        )
        if not differing:
            return
        values = [_value(where) for where in differing]
        enough = sum(size_of(one) for one in values if travels(one)) <= MOST_BYTES
        said = tell({"values": [_packed(value) for value in values] if enough else None})
        if all(one["values"] is not None for one in said.values()):
            self._own = {where: mine[where] for where in differing}
            self._theirs = {rank: list(map(_unpacked, one["values"])) for rank, one in said.items()}

    @contextmanager
    def of(self, rank: int) -> Iterator[None]:
        """In here modules know what they know on `rank`. Raises NotReplayable."""
        wanted = dict(zip(self._own, self._theirs.get(rank, ()), strict=False))
        before: list[tuple[Members, str, Any]] = []
        try:
            for where, value in wanted.items():
                attributes, name = self._place(where)
                before.append((attributes, name, attributes[name]))
                attributes[name] = value
            yield
        finally:
            for attributes, name, value in reversed(before):
                attributes[name] = value

    def _place(self, where: Where) -> tuple[Members, str]:
        attributes, name = _attributes(where)
        if attributes is None or _digest(attributes.get(name)) != self._own[where]:
            raise NotReplayable(MOVED.format(module=where[0], name=named(where[1])))
        return attributes, name


def _found(modules: Iterable[str]) -> Iterator[tuple[Where, Any]]:
    """Plain values of these modules and of the project's objects there, and data they hold."""
    own = frozenset(modules)
    for name in sorted(own):
        module = sys.modules.get(name)
        if module is None or name == "__main__":
            continue
        for variable, value in list(vars(module).items()):
            if not variable.startswith("__") and _tells(variable, value):
                yield (name, variable), value
        for path, owner in owners_of(vars(module), own):
            if type(owner).__module__ != "__main__":
                for attribute, value in list(members(owner).items()):
                    if _tells(attribute, value):
                        yield (name, (*path, attribute)), value


def _tells(name: str, value: Any) -> bool:
    if type(value) in CODE or belongs_to_process(name):
        return False
    return is_simple(value) or travels(value) and size_of(value) <= MOST_BYTES


def _attributes(where: Where) -> tuple[Members | None, str]:
    module, key = where
    names = vars(sys.modules[module]) if module in sys.modules else {}
    if isinstance(key, str):
        return (names if key in names else None), key
    owner = resolve(names, key)
    held = members(owner)
    return (held if key[-1] in held else None), key[-1]


def _value(where: Where) -> Any:
    attributes, name = _attributes(where)
    return None if attributes is None else attributes.get(name)


def _digest(value: Any) -> int:
    """Of a plain value or of data; 0 where it is neither."""
    if is_simple(value):
        return zlib.crc32(repr(value).encode(errors="replace")) or 1
    return zlib.crc32(mark_of(value).encode()) or 1 if travels(value) else 0


def _packed(value: Any) -> list[Any]:
    return packed(value) if travels(value) else ["plain", "", [], _plain(value)]


def _unpacked(given: list[Any]) -> Any:
    return _original(given[3]) if given[0] == "plain" else unpacked(given)


def _plain(value: Any) -> Any:
    """Tuples are marked: msgpack knows lists alone."""
    if isinstance(value, list | tuple):
        return [isinstance(value, tuple), [_plain(one) for one in value]]
    return value


def _original(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    is_tuple, parts = value
    found = [_original(one) for one in parts]
    return tuple(found) if is_tuple else found
