"""The generators of the script that a proof has resumed, in the place of another rank's, and the
kinds of loaders that it has met.
"""

from recoverrun.worker.data.generator_source import GeneratorSource
from recoverrun.worker.data.loader_iterator import LoaderIterator
from recoverrun.worker.data.loader_kinds import kinds_of
from recoverrun.worker.data.weak_source import WeakSource
from recoverrun.worker.tracking.script_runtime import ScriptRuntime


class ProvedGenerators:
    """Known by the function that made them, which is the same on all ranks, and of this process
    also one by one.
    """

    def __init__(self, runtime: ScriptRuntime) -> None:
        self._runtime = runtime
        self.names: set[str] = set()
        self.numbers: set[int] = set()

    def trust(self) -> None:
        """The present transaction is proved, or is about to be, in a child."""
        for source in self._runtime.sources:
            held = source.held if isinstance(source, WeakSource) else None
            if isinstance(held, GeneratorSource) and held.asked:
                self.names.add(held.name)
                self.numbers.add(held.number)
            elif isinstance(held, LoaderIterator) and held.count:
                self.names.update(kinds_of(held.loader))

    def learned(self) -> list[str]:
        """The functions, for a process that takes a lost rank's place."""
        return sorted(self.names)

    def learn(self, learned: list[str]) -> None:
        """Take over the functions that all ranks had proved before this process began."""
        self.names.update(learned)
