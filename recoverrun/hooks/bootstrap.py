"""Decides whether this process is a protected worker, and sets up what it needs.

Torch is not imported here: a script that never wants it pays nothing for it. As soon as the script
imports torch, the session begins and the table of `patches` is filled.
"""

import atexit
import os
import sys
import threading
from collections.abc import Mapping
from importlib import metadata
from types import ModuleType
from typing import TYPE_CHECKING, Any

from recoverrun.hooks import patches
from recoverrun.hooks.runtime import ScriptRuntime, forget_in_children
from recoverrun.hooks.script import Started
from rendezvous.env import WorkerEnv
from rendezvous.messages import Farewell, Hello
from rendezvous.transport import WorkerLink

if TYPE_CHECKING:  # it imports torch, which only the script does
    from recoverrun.hooks.session import Session


def start(environ: Mapping[str, str]) -> Started:
    """Set up the hooks. Inert without the endpoint of a launcher, or if protection is off.

    Raises EnvError if the launcher's variables are not what they should be.
    """
    env = WorkerEnv.from_environ(environ)
    if env is None or not env.protect:
        return Started(runtime=None, finish=_nothing)
    worker = _Worker(env)
    patches.watch("torch", worker.torch_arrived)
    return Started(runtime=worker.runtime, finish=worker.finish, failing=worker.failing)


def _nothing(_code: int) -> None:
    """Finish a run that nobody watches."""


class _Worker:
    """One protected worker, from its first line to its last."""

    def __init__(self, env: WorkerEnv) -> None:
        self.env = env
        self.link = WorkerLink(env.endpoint, env.rank, env.incarnation)
        self.runtime = ScriptRuntime(env.rank)
        self.session: Session | None = None
        forget_in_children(self.runtime)
        self.link.send(Hello(
            rank=env.rank, incarnation=env.incarnation, pid=os.getpid(), torch=_torch_version()
        ))

    def torch_arrived(self, _module: ModuleType) -> None:
        """The script has imported torch."""
        from recoverrun.hooks.session import Session

        self.session = Session(self.env, self.link, self.runtime)
        patches.install(self.session)

    def failing(self, error: BaseException) -> None:
        """The script failed. If a peer's death is all that it says, it is not worth saying."""
        if self.session is not None and self.session.machine is not None:
            self.session.await_end(error)

    def finish(self, code: int) -> None:
        """The script ended with `code`. Returns only if the interpreter may end by itself."""
        session = self.session
        if code == 0:
            if session is not None:
                session.leave_witness()
                session.farewell()
            else:
                self.link.send(Farewell(rank=self.env.rank, generation=1, step=0))
        if session is None or session.machine is None:
            self.link.close()
            return
        # Communicators that were left behind may hold threads which would never let us end.
        _end_threads_and_exit_functions()
        self.link.close()
        for stream in (sys.stdout, sys.stderr):
            if stream is not None and not stream.closed:
                stream.flush()
        os._exit(code)


def _end_threads_and_exit_functions() -> None:
    """What the interpreter does first when it ends: the script may count on it."""
    shutdown: Any = getattr(threading, "_shutdown", None)
    if shutdown is not None:
        shutdown()
    atexit._run_exitfuncs()


def _torch_version() -> str:
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return ""
