"""The interface of the tracker to a process in which the script has imported torch."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from recoverrun.worker.data.source import Draw

if TYPE_CHECKING:  # they import torch, which the script imports when it wants to
    from recoverrun.worker.context.slot_context import Key, Path
    from recoverrun.worker.rng.streams import Streams


class Observer(Protocol):
    """The observer of a process in which the script has imported torch."""

    def streams(self) -> "Streams":
        """The positions of the random streams."""

    def attributes(
        self,
        visible: Mapping[str, Any] | None,
        own: frozenset[str],
        given: Iterable[Any],
    ) -> "dict[Path, Any]":
        """Simple attributes of objects whose classes the modules `own` define.

        Objects are looked for among `visible` variables, but not in what iterators have `given`;
        if that is None, those of the last time are read.
        """

    def bulk(self, names: Mapping[str, Any]) -> "dict[Key, Any]":
        """The large values among `names`, and those and iterators over loaders among the attributes
        last looked at, by reference.
        """

    def look(self) -> None:
        """Note what the script has changed in place in its modules (`changed_in_place`)."""

    def iterator_lists(self) -> list[tuple[list[Any], list[Any]]]:
        """The lists last looked at that hold iterators over loaders, and what they hold now."""

    def iterators(self, module: Mapping[str, Any], local: Mapping[str, Any]) -> "dict[Key, Any]":
        """Copies of plain iterators among the variables and the attributes last looked at."""

    def seen(self) -> frozenset[int]:
        """Identities of the objects that `attributes` last looked at, and of all generators."""

    def drawn_for(self, iterable: Iterable[Any], draws: list[Draw]) -> list[Draw]:
        """Those of `draws` that are in what a loop over `iterable` will be given."""

    def copied(self, value: Any) -> Any:
        """A copy of what code may change in place (small tensors, containers), else `value`."""

    def left(self, bound: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Of variables that a loop has `bound` those that hold figures, or lists of them, without
        their graphs; and the names of all others.
        """
