"""What data sources ask the process that they are in: whom it stands for, and what was drawn."""

from collections.abc import Container
from contextlib import AbstractContextManager
from typing import Any, Protocol

from torch.utils.data import DataLoader

from recoverrun.worker.data.iterator_origin import Origin
from recoverrun.worker.data.loader_workers import WorkerItem
from recoverrun.worker.data.source import Draw, Source
from rendezvous.protocol.layout import Layout


class DataRuntime(Protocol):
    """What an iterator asks the runtime at every draw."""

    @property
    def acting_rank(self) -> int | None:
        """The lost rank being impersonated, or None in normal work."""

    @property
    def own_rank(self) -> int: ...

    @property
    def layout(self) -> Layout | None: ...

    @property
    def fresh(self) -> bool:
        """One more microbatch is computed on our own next data."""

    asking: int
    """How many generators of the script are at work, one within another, to give an item."""

    @property
    def looking_back(self) -> bool:
        """The item was drawn before the code that is executed again."""

    def created_at(self, number: int, rank: int) -> Origin | None:
        """Where `rank` stood when it created its iterator `number`, if it said so."""

    def drawn(self, source: Source, index: int, item: Any) -> None:
        """Note a draw of normal work."""

    @property
    def seen(self) -> Container[int]:
        """Identities of objects whose attributes, and of generators whose states, are put where a
        lost rank's were while its microbatch is executed, and then back.
        """

    def believe(self, loader: "DataLoader[Any]", read: WorkerItem) -> None:
        """Raises NotReplayable if another rank's workers may have drawn other numbers for it."""

    def speaking_as(self, rank: int) -> AbstractContextManager[None]:
        """In here, and in processes that begin here, who asks for its rank is told `rank`."""


class GeneratorRuntime(DataRuntime, Protocol):
    """What a feed asks the runtime."""

    @property
    def drawn_so_far(self) -> int:
        """How many draws normal work has made."""

    def draws_since(self, mark: int) -> list[Draw] | None:
        """The draws from number `mark` on, or None if there were too many to keep them."""

    def fold(self, mark: int, draw: Draw) -> None:
        """Draws from number `mark` on were made for this one."""

    def trusts(self, name: str) -> bool:
        """True once a proof has resumed a generator of this function."""

    def spoil(self, reason: str) -> None:
        """What is being re-executed is not the lost rank's microbatch: end it at its backward."""
