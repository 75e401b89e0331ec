"""A run that is watched as it goes on: what its ranks wait for is told by a file (`patience`)."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rendezvous.journal.reader import Entry, RunTail

PATIENCE = Path(__file__).parent / "patience"
WITHIN_S = 150.0
"""A fresh process imports frameworks, on a machine that is busy."""

LOOK_S = 0.2


@contextmanager
def watched(
    run_dir: Path,
    word: Path,
    wanted: Callable[[Entry], bool],
    since: Callable[[Entry], bool] = lambda entry: True,
) -> Iterator[None]:
    """Leave the file `word` as soon as the journal has a wanted record, or none came for WITHIN_S
    after the first one that `since` is true of.
    """
    over = threading.Event()

    def watch() -> None:
        tail, looks = RunTail(run_dir), 0
        while not over.wait(LOOK_S) and looks * LOOK_S < WITHIN_S:
            entries = tail.poll()
            looks += bool(looks) or any(map(since, entries))
            if any(map(wanted, entries)):
                break
        word.touch()

    watcher = threading.Thread(target=watch, name="watches a run")
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
