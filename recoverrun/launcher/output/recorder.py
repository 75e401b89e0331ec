"""What this launcher has to tell: to the journal as records, to the console as lines.

A node learns its name only when the job is formed, and its journal is named after it: what happens
before is kept and written behind the journal's first line.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path

from recoverrun.config.run_config import RunConfig
from recoverrun.errors import ExitCode, RecoverrunError
from recoverrun.launcher.output.announcements import announcement
from recoverrun.version import __version__
from rendezvous.journal.writer import Journal, journal_path
from rendezvous.protocol.effects import Json, Record


class Recorder:
    """The journal of this node and the lines that go with it."""

    def __init__(
        self, *, config: RunConfig, run_dir: Path, began_at: float, say: Callable[[str], None]
    ) -> None:
        """`began_at` is the monotonic time at which the launcher started; `say` prints a line."""
        self._config = config
        self._run_dir = run_dir
        self._began_at = began_at
        self._say = say
        self._journal: Journal | None = None
        self._early: list[tuple[Record, float, float]] = []  # with its times, before the journal

    @property
    def is_open(self) -> bool:
        return self._journal is not None

    def open(self, node: str, world_size: int, nodes: tuple[str, ...]) -> None:
        """Begin the journal, now that this node has its name. Raises RecoverrunError."""
        if self._journal is not None:
            return
        path = journal_path(self._run_dir, node)
        try:
            self._journal = Journal(path, node, self._began_at)
        except OSError as error:
            raise RecoverrunError(f"no journal {path}: {error}", ExitCode.USAGE) from error
        early, self._early = self._early, []
        config = self._config
        fields: dict[str, Json] = {
            "run_id": config.run_id,
            "argv": [config.script, *config.arguments],
            "world_size": world_size,
            "nnodes": len(nodes),
            "version": __version__,
            "inject": config.inject,
            "nodes": list(nodes),
            "min_replicas": config.min_replicas,
            "pid": os.getpid(),
        }
        start = Record("run.start", f"run {config.run_id} of {config.name}", fields)
        # What was recorded while there was no journal belongs behind its first line.
        first = early[0][1:] if early else (time.monotonic(), time.time())
        for record, mono, wall in [(start, *first), *early]:
            self._journal.append(record, mono=mono, wall=wall)

    def record(self, record: Record) -> None:
        mono, wall = time.monotonic(), time.time()
        if self._journal is None:
            self._early.append((record, mono, wall))
        else:
            self._journal.append(record, mono=mono, wall=wall)
        line = announcement(record)
        if line:
            self._say(line)

    def close(self) -> None:
        if self._journal is not None:
            self._journal.close()
