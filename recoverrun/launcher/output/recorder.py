"""The reports of this launcher: to the journal as records, to the console as lines.

A node learns its name only when the job is formed, and its journal is named after it: what happens
before is kept and written behind the journal's first line.
"""

import os
import time
from collections.abc import Callable

from recoverrun.config.run_config import RunConfig
from recoverrun.errors import RecoverrunError
from recoverrun.launcher.output.announcements import Announcer
from recoverrun.launcher.output.journal_news import JournalNews
from recoverrun.launcher.output.run_folder import RunFolder
from recoverrun.version import __version__
from rendezvous.journal.writer import Journal, journal_path
from rendezvous.protocol.exit_codes import ExitCode
from rendezvous.protocol.messages import Stop
from rendezvous.protocol.records import Json, Record

FLUSH_S = 10.0
"""How long the end of a run waits for a disk that stalls."""


class Recorder:
    """The journal of this node and the lines that go with it."""

    def __init__(
        self, *, config: RunConfig, folder: RunFolder, began_at: float, say: Callable[[str], None]
    ) -> None:
        """`began_at` is the monotonic time at which the launcher started; `say` prints a line."""
        self._config = config
        self._folder = folder
        self._began_at = began_at
        self._say = say
        self.announcer = Announcer(say)
        self._journal: Journal | None = None
        self._news = JournalNews()
        self._early: list[tuple[Record, float, float]] = []  # with its times, before the journal

    def open(self, node: str, world_size: int, nodes: tuple[str, ...]) -> None:
        """Begin the journal, now that this node has its name. Raises RecoverrunError."""
        if self._journal is not None:
            return
        self._folder.claim()
        path = journal_path(self._folder.path, node)
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
            "min_replicas": config.recovery_policy.min_replicas,
            "pid": os.getpid(),
            "folder": self._folder.name,
        }
        start = Record("run.start", f"run {config.run_id} of {config.name}", fields)
        # Records from before there was a journal belong behind its first line.
        first = early[0][1:] if early else (time.monotonic(), time.time())
        for record, mono, wall in [(start, *first), *early]:
            self._journal.append(record, mono=mono, wall=wall)

    def end(self, node: str, stop: Stop) -> None:
        """Write down how the part of `node` in the job ended, unless another job writes there."""
        try:
            self.open(node, 0, (node,))
        except RecoverrunError:
            return  # Who ends for this very reason says so itself.
        fields: dict[str, Json] = {"exit_code": int(stop.exit_code), "root_rank": stop.root_rank}
        if stop.node:
            fields["root_node"] = stop.node
        self.record(Record("run.end", stop.reason, fields))

    def record(self, record: Record) -> None:
        mono, wall = time.monotonic(), time.time()
        if self._journal is None:
            self._early.append((record, mono, wall))
        else:
            self._journal.append(record, mono=mono, wall=wall)
        self.announcer.hear(record, mono)

    def tick(self, now: float) -> None:
        """Time passed: tell of a disk that does not take the journal, or does again."""
        journal = self._journal
        if journal is None:
            return
        journal.tick(now)
        if journal.removed and (words := self._news.removed()):
            self._say(words)
        words = self._news.heard(
            journal.trouble(now), journal.missed(), behind=journal.behind, now=now
        )
        if words:
            self._say(words)

    def flush(self) -> bool:
        """Wait until all records are with the kernel, for FLUSH_S at most. True if they are."""
        return self._journal is not None and self._journal.flush(FLUSH_S)

    def close(self) -> None:
        """Write what is left, for FLUSH_S at most, and say what could not be written."""
        if self._journal is None:
            return
        left = self._journal.close(FLUSH_S)
        now = time.monotonic()
        trouble, missed = self._journal.trouble(now), self._journal.missed()
        words = self._news.ended(trouble, missed, left=left, now=now)
        if words:
            self._say(words)
