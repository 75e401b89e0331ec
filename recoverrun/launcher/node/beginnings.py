"""Starts workers of this node: their places, files and processes.

A rank may begin more than once: after a loss it gets another process, with files of its own.
"""

import sys
from collections.abc import Mapping
from pathlib import Path

from recoverrun.config.run_config import RunConfig
from recoverrun.errors import RecoverrunError
from recoverrun.launcher.node.environment import (
    OUR_WORKER,
    WorkerSettings,
    worker_command,
    worker_environ,
)
from recoverrun.launcher.node.process import spawn
from recoverrun.launcher.node.spares import Spares, stream
from recoverrun.launcher.node.worker_messages import Worker
from recoverrun.launcher.output.log_files import Outlets, WorkerLogs
from recoverrun.launcher.output.patience import Patience
from recoverrun.launcher.output.run_dir import PrivateDir
from rendezvous.protocol.exit_codes import ExitCode
from rendezvous.protocol.formation_messages import Start
from rendezvous.protocol.incarnations import birth_of, incarnation
from rendezvous.protocol.spare_order import SpareOrder

FILES_S = 0.5
"""Limit of the wait for a disk on which a rank that starts again gets its files."""


class Beginnings:
    """Starts the workers of one node, in one attempt."""

    def __init__(
        self,
        *,
        config: RunConfig,
        start: Start,
        run_dir: Path,
        private: PrivateDir,
        outlets: Outlets,
        spares: Spares,
        keeper: str,
        inherited: Mapping[str, str],
    ) -> None:
        """`keeper` is where snapshots are kept, "" if nowhere; `inherited` is the environment that
        workers get, before what is their own.
        """
        self._keeper = keeper
        self._config = config
        self._start = start
        self._run_dir = run_dir
        self._private = private
        self._outlets = outlets
        self._spares = spares
        self._inherited = inherited
        self._patience: Patience[WorkerLogs | str] = Patience(FILES_S)

    def begin(self, rank: int, birth: int) -> Worker:
        """Start the process of `rank` with this birth. Raises RecoverrunError if that cannot be."""
        if self._private.full:
            # Its own files are small; data loaders that share batches fill what a container has.
            sentence = f"{self._private.path.parent} is full"
            raise RecoverrunError(sentence, ExitCode.FAILED)
        local_rank = rank - self._start.first_rank
        number = self.number(birth)
        outlet = self._outlet(rank, local_rank, number)
        context = self._private.context(rank, number)
        environ = self._environ(local_rank, number, context, str(outlet.error_file))
        command = worker_command(self._config, local_rank, self._python)
        order = SpareOrder(
            environ=environ,
            arguments=tuple(command[len(OUR_WORKER) + 1 :]),
            stdout=stream(outlet.stdout),
            stderr=stream(outlet.stderr),
        )
        cpus = self._config.bindings[local_rank] if self._config.bindings else ()
        child = self._spares.take(order) or spawn(
            command, environ, stdout=outlet.stdout, stderr=outlet.stderr, cpus=cpus
        )
        return Worker(
            rank=rank,
            incarnation=number,
            child=child,
            context=context,
            error_file=str(outlet.error_file),
            stderr=outlet.stderr,
        )

    def committed(self) -> None:
        """A step is committed: from now on there may be somebody to replace."""
        # Its CPUs are bound before a worker has any thread: a spare has some.
        if self._spares.wanted and not (self._config.no_python or self._config.bindings):
            environ = self._environ(0, incarnation(self._start.attempt, 0), "", "")
            self._spares.keep([self._python, *OUR_WORKER], environ)

    @property
    def _python(self) -> str:
        return self._inherited.get("PYTHON_EXEC") or sys.executable

    def _environ(
        self, local_rank: int, number: int, context: str, error_file: str
    ) -> dict[str, str]:
        place = WorkerSettings(
            local_rank=local_rank,
            incarnation=number,
            endpoint=f"ipc://{self._private.socket}",
            run_dir=str(self._run_dir),
            context=context,
            error_file=error_file,
            restarts=self._start.restarts,
            keeper=self._keeper,
        )
        return worker_environ(self._config, self._start, place, self._inherited)

    def number(self, birth: int) -> int:
        """The incarnation of a process with this birth."""
        return incarnation(self._start.attempt, birth)

    def _outlet(self, rank: int, local_rank: int, number: int) -> WorkerLogs:
        """The files of a process. While the job runs nobody waits for a disk that stalls."""
        if birth_of(number) == 0:
            return self._outlets.open(rank, local_rank, number)

        def opened() -> WorkerLogs | str:
            try:
                return self._outlets.open(rank, local_rank, number)
            except OSError as error:
                return error.strerror or str(error)

        found = self._patience.ask(opened, "the disk stalls")
        if isinstance(found, str):
            raise RecoverrunError(f"no files for rank {rank}: {found}", ExitCode.FAILED)
        return found
