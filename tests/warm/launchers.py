"""The start of launchers by suites: each as a new process, or as a fork of a template."""

import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO, TYPE_CHECKING

from tests.warm.client import Template

if TYPE_CHECKING:
    from recoverrun.fault_injection.trial import Process, Starter

CACHE = "XDG_CACHE_HOME"


def new_process(
    command: Sequence[str], *, cwd: Path, env: Mapping[str, str], stdout: IO[bytes] | int
) -> "Process":
    """Run `command` without input; its errors go with its output."""
    return subprocess.Popen(
        command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=stdout,
        stderr=subprocess.STDOUT,
    )  # fmt: skip


@contextmanager
def own_cache() -> Iterator[None]:
    """A cache folder of the suite: the user's own runs have another one."""
    former = os.environ.get(CACHE)
    with tempfile.TemporaryDirectory(prefix="cache-") as folder:
        os.environ[CACHE] = folder
        try:
            yield
        finally:
            del os.environ[CACHE]
            if former is not None:
                os.environ[CACHE] = former


class Launchers:
    def __init__(self) -> None:
        self._template: Template | None = None

    @contextmanager
    def forked(self, wanted: bool = True) -> Iterator[None]:
        """Within the block launchers and workers are forks, if `wanted`, and nothing is kept in the
        user's cache folder.
        """
        with own_cache(), Template() if wanted else nullcontext(self._template) as template:
            former, self._template = self._template, template
            try:
                yield
            finally:
                self._template = former

    @contextmanager
    def anew(self) -> Iterator[None]:
        """Within the block each is a new process, as a user starts it."""
        former, self._template = self._template, None
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
