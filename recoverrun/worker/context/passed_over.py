"""Parts of what a script holds that are passed over where all of it is walked through: what is rank
0's alone, say.
"""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class PassedOver:
    """Variables, attributes of objects of the script's classes, and entries of dicts, these by the
    bare name of the dict and the key. `own` are the script's modules.
    """

    variables: frozenset[str] = frozenset()
    attributes: frozenset[str] = frozenset()
    entries: frozenset[tuple[str, str]] = frozenset()
    own: frozenset[str] = frozenset()
    names: frozenset[Any] = field(init=False)
    """All keys under which one of them may lie."""

    def __post_init__(self) -> None:
        keys = frozenset(key for _, key in self.entries)
        object.__setattr__(self, "names", self.attributes | keys)

    def lies_at(self, path: str, key: Any, owner: Any) -> bool:
        """True of what a dict at `path` holds under `key`; `owner` is the class of the object whose
        attributes the dict has, None of any other dict.

        Nobody knows what a class of a library does with an attribute.
        """
        if owner is None:
            return (path.rpartition(".")[2], key) in self.entries
        bases = (one for one in owner.__mro__ if one is not object)
        return key in self.attributes and all(one.__module__ in self.own for one in bases)

    def lies_on(self, key: str | tuple[str, ...]) -> bool:
        """True of a value that hangs on one of them, by the names on the way from a variable."""
        path = (key,) if isinstance(key, str) else key
        pairs = zip(path, path[1:], strict=False)
        return (
            path[0] in self.variables
            or not self.attributes.isdisjoint(path[1:])
            or any((dict_name, key.strip("[]'\"")) in self.entries for dict_name, key in pairs)
        )


NOTHING = PassedOver()
