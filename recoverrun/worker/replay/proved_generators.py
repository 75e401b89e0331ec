"""The generators of the script that a proof has resumed, in the place of another rank's."""

from collections.abc import Iterable

from recoverrun.worker.data.generator_source import GeneratorSource


class ProvedGenerators:
    """Known by the function that made them, which is the same on all ranks, and of this process
    also one by one.
    """

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.numbers: set[int] = set()

    def add(self, sources: Iterable[GeneratorSource]) -> None:
        """Take in `sources`: the proof that resumed them holds, or is about to be made."""
        for source in sources:
            self.names.add(source.name)
            self.numbers.add(source.number)

    def learned(self) -> list[str]:
        """The functions, for a process that takes a lost rank's place."""
        return sorted(self.names)

    def learn(self, learned: list[str]) -> None:
        """Take over the functions that all ranks had proved before this process began."""
        self.names.update(learned)
