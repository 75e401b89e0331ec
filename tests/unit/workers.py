"""Stand-ins for a worker's state: what a test gives is there, and nothing else."""

from typing import Any


def protected(worker: Any) -> Any:
    """Let `worker` have a protection of what it holds itself: layout, strategy, machine and so on.

    What is changed there later shows in the protection, too.
    """
    names = ("layout", "strategy", "machine", "fabric", "vote_group", "peers", "mates")
    parts = property_of(worker, names)
    worker.protection = parts
    worker.protected = True
    return worker


def property_of(owner: Any, names: tuple[str, ...]) -> Any:
    """An object with these attributes of `owner`, as they are when they are asked for."""

    class Parts:
        def __getattr__(self, name: str) -> Any:
            if name not in names:
                raise AttributeError(name)
            return getattr(owner, name)

    return Parts()
