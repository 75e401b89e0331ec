"""The interface of data sources to their process: the rank that it stands for, and the draws."""

from collections.abc import Container
from contextlib import AbstractContextManager
from typing import Any, Protocol

from torch.utils.data import DataLoader

from recoverrun.worker.data.generator_wrapper import Make
from recoverrun.worker.data.iterable_snapshot import IterableSnapshot
from recoverrun.worker.data.iterator_origin import Origin
from recoverrun.worker.data.source import Draw, Source
from recoverrun.worker.data.worker_item import WorkerItem
from rendezvous.protocol.layout import Layout


class DataRuntime(Protocol):
    """The interface that an iterator uses at every draw."""

    @property
    def acting_rank(self) -> int | None:
        """The lost rank that this thread executes for; None in work of its own."""

    @property
    def own_rank(self) -> int: ...

    @property
    def layout(self) -> Layout | None: ...

    @property
    def fresh(self) -> bool:
        """True while a microbatch is computed on this rank's own further data."""

    asking: int
    """How many generators of the script are running, one within another, to give an item."""

    @property
    def looking_back(self) -> bool:
        """True if the item was drawn before the code that is executed again."""

    def created_at(self, number: int, rank: int) -> Origin | None:
        """The origin of iterator `number` of `rank`, if that rank told it."""

    def drawn(self, source: Source, index: int, item: Any) -> None:
        """Note a draw of normal work."""

    @property
    def seen(self) -> Container[int]:
        """Identities of objects and generators whose states others put in place and back, while a
        microbatch of a lost rank is executed.
        """

    def theirs(self, data: Any, begun: IterableSnapshot | None) -> dict[str, Any]:
        """The attributes of a data set of ours that are another rank's, but for those that have
        moved since it was `begun`, if it is read in this process. Raises NotReplayable if they are
        unknown.
        """

    def reading(self) -> AbstractContextManager[None]:
        """An iterable data set is read in this scope, in normal work."""

    def believe(self, loader: "DataLoader[Any]", read: WorkerItem) -> None:
        """Raises NotReplayable if the other rank's workers may have drawn other numbers."""

    def speaking_as(self, rank: int) -> AbstractContextManager[None]:
        """Give `rank` to code that asks for its rank, here and in processes that begin here."""


class GeneratorRuntime(DataRuntime, Protocol):
    """The further interface of a generator source."""

    reads_ahead: bool
    """True while a generator is run for an item that the script gets later."""

    @property
    def drawn_so_far(self) -> int:
        """The number of draws that normal work has made."""

    def draws_since(self, mark: int) -> list[Draw] | None:
        """The draws from number `mark` on, or None if there were too many to keep them."""

    def fold(self, mark: int, draw: Draw | None) -> None:
        """Replace the draws from number `mark` on by `draw`, for which they were made; None: they
        are in nothing that the script has yet.
        """

    def trusts(self, name: str) -> bool:
        """True once a proof has resumed a generator of this function."""

    def made_as(self, number: int, name: str, own: Make) -> Make | None:
        """The call that the executed rank makes where we made generator `number` of the function
        `name` by our `own`; None if it is not known.
        """

    def spoil(self, reason: str) -> None:
        """Give up the re-execution at its backward: it is not the lost rank's microbatch."""
