"""A generator of the script's own, made anew for another rank and read from its beginning.

    def batches(rows, rank, world):
        order = shuffled(rows)
        for start in range(rank, len(order), world):
            yield order[start]

No generator can be copied. But its function can be called once more with the same arguments, in
which ranks are known to differ or not (`rank_constants`), and what it passes on the way to the item
that is wanted is dropped. It must not draw random numbers of the process, nor from generators that
it was given: where these stood as it began nobody knows any more.
"""

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

from recoverrun.worker.data.generator_wrapper import Make
from recoverrun.worker.errors import NotReplayable
from recoverrun.worker.rng.registry import REGISTRY
from recoverrun.worker.rng.streams import read_streams, restore_streams

DRAWS = "{} draws random numbers, and where the streams of another rank stood then is unknown"
FAILS = "{} cannot be read again for another rank: {!r}"


@dataclass(slots=True)
class _Reader:
    """One rank's generator, and the items of the present step that it has given."""

    generator: Generator[Any, Any, Any]
    count: int = 0
    items: dict[int, Any] = field(default_factory=dict)


class GeneratorAgain:
    """The generators of other ranks in the place of one of ours, called `name`."""

    def __init__(self, make: Make, name: str) -> None:
        self.make = make
        self._name = name
        self._readers: dict[int, _Reader] = {}

    def item(self, rank: int, index: int, make: Make) -> Any:
        """Item `index` of `rank`, as which code runs now, and whose generator `make` makes. Raises
        NotReplayable and StopIteration.

        What was begun for a rank and has failed is made anew the next time.
        """
        reader = self._readers.pop(rank, None)
        if reader is None or (index < reader.count and index not in reader.items):
            reader = _Reader(make())
        if index not in reader.items:
            self._read(reader, index)
        self._readers[rank] = reader
        return reader.items[index]

    def _read(self, reader: _Reader, index: int) -> None:
        streams, generators = read_streams(), REGISTRY.states()
        try:
            while reader.count <= index:
                item = next(reader.generator)
                if reader.count == index:
                    reader.items[index] = item
                reader.count += 1
        except StopIteration:
            raise
        # Protects the generator of the script that may hold ours: an error would end it.
        except Exception as error:
            raise NotReplayable(FAILS.format(self._name, error)) from error
        moved = REGISTRY.moved_since(generators).keys() & generators.keys()
        if moved or read_streams() != streams:
            REGISTRY.restore(generators)
            restore_streams(streams)
            raise NotReplayable(DRAWS.format(self._name))

    def forget(self, rank: int) -> None:
        self._readers.pop(rank, None)

    def begin_step(self, floor: int) -> None:
        """Forget items before `floor`: they belong to steps that are over."""
        for reader in self._readers.values():
            reader.items = {index: one for index, one in reader.items.items() if index >= floor}
