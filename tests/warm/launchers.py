"""The start of launchers by suites: each as a new process, or as a fork of a template."""

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

from tests.warm.client import Template

if TYPE_CHECKING:
    from recoverrun.fault_injection.trial import Process, Starter


def new_process(
    command: Sequence[str], *, cwd: Path, env: Mapping[str, str], stdout: IO[bytes] | int
) -> "Process":
    """Run `command` without input; its errors go with its output."""
    return subprocess.Popen(
        command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=stdout,
        stderr=subprocess.STDOUT,
    )  # fmt: skip


class Launchers:
    def __init__(self) -> None:
        self._template: Template | None = None

    @contextmanager
    def forked(self, wanted: bool = True) -> Iterator[None]:
        """Within the block launchers and workers are forks, if `wanted`."""
        if not wanted:
            yield
            return
        former = self._template
        with Template() as self._template:
            try:
                yield
            finally:
                self._template = former

    @property
    def starter(self) -> "Starter | None":
        """For `recoverrun.fault_injection.trial.launch`."""
        template = self._template
        if template is None:
            return None
        return lambda command, env: template.start(command, env=env, group=True)

    def start(
        self, command: Sequence[str], *, cwd: Path, env: Mapping[str, str], stdout: IO[bytes] | int
    ) -> "Process":
        """As `new_process`; `command` is a launcher of ours."""
        if self._template is not None:
            return self._template.start(command, cwd=cwd, env=env, stdout=stdout)
        return new_process(command, cwd=cwd, env=env, stdout=stdout)


LAUNCHERS = Launchers()
"""One for the process, as a suite is: whoever starts a launcher asks it."""
