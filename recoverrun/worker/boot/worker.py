"""Decides whether this process is a protected worker, and sets up what it needs.

Neither torch nor ZeroMQ is imported here: a script that never wants torch pays nothing for what it
is not given, and every script gets to its first line sooner. As soon as the script imports torch,
the worker speaks to its launcher, and recovery is put together (`assembly`, which `__main__` hands
in). To the launcher, a worker that never spoke is a program like any other.
"""

import atexit
import os
import sys
import threading
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from recoverrun.worker.boot import given_up_rights, new_program, run_script
from recoverrun.worker.boot.children import (
    call_handlers_for_the_scripts_forks,
    forget_in_children,
)
from recoverrun.worker.boot.hidden_threads import hide_threads
from recoverrun.worker.boot.signal_handlers import hold_exceptions
from recoverrun.worker.error_file import words_of
from recoverrun.worker.errors import NotReachable
from recoverrun.worker.instrumentation import Started
from recoverrun.worker.patches import frameworks
from recoverrun.worker.rewriting.post_import import when_imported
from recoverrun.worker.rng.registry import REGISTRY
from recoverrun.worker.tracking.loop_tracker import LoopTracker
from recoverrun.worker.tracking.script_runtime import ScriptRuntime
from rendezvous.protocol.progress_page import ProgressWriter, page_beside
from rendezvous.protocol.worker_env import WorkerEnv

if TYPE_CHECKING:  # it imports torch, which only the script does
    from recoverrun.worker.step.driver import Driver
    from rendezvous.transport.worker_link import WorkerLink

SHUT_OUT = (
    "recoverrun: rank {} is not protected: the user that it runs as by now may not use {}, "
    "where it meets its launcher"
)

CALLERS = 4
"""Threads that call the store at the same time: the script's, those that connect ranks, and those
that fetch or send the state of one that comes back.
"""

Assemble = Callable[[WorkerEnv, "WorkerLink", ScriptRuntime], "Driver"]
"""Puts recovery together, once the script has imported torch."""


def start(environ: Mapping[str, str], assemble: Assemble) -> Started:
    """Set up the hooks. Inert without the endpoint of a launcher, or if protection is off.

    Raises EnvError if the launcher's variables are not what they should be.
    """
    env = WorkerEnv.from_environ(environ)
    if env is None or not env.protect:
        return Started(runtime=None, finish=_nothing)
    worker = _Worker(env, assemble)
    when_imported("random", REGISTRY.watch_random)
    when_imported("torch", worker.torch_arrived)
    call_handlers_for_the_scripts_forks()
    hide_threads()
    hold_exceptions(lambda: worker.runtime.mode.acting_rank is not None)
    given_up_rights.watch(worker.connect_ahead)
    new_program.watch(lambda: worker.driver is not None, worker.replaced)
    return Started(
        runtime=LoopTracker(worker.runtime),
        finish=worker.finish,
        failing=worker.failing,
        hints=frameworks.HINTS,
    )


def shut_out(rank: int, context: str, access: Callable[..., bool] = os.access) -> str:
    """The sentence about a script that has given up its rights before it imported torch, or ""."""
    folder = os.path.dirname(context)
    if not folder or access(folder, os.W_OK | os.X_OK, effective_ids=True):
        return ""
    return SHUT_OUT.format(rank, folder)


def _nothing(_code: int) -> None:
    """Finish a run that nobody watches."""


class _Worker:
    """One protected worker, from its first line to its last."""

    def __init__(self, env: WorkerEnv, assemble: Assemble) -> None:
        self.env = env
        self._assemble = assemble
        page = page_beside(env.context) if env.context else ""
        self.runtime = ScriptRuntime(env.rank, ProgressWriter(page))
        self.driver: Driver | None = None
        forget_in_children(self.runtime)

    def torch_arrived(self, module: ModuleType) -> None:
        """The script has imported torch."""
        # Only now: together they take as long as all else before the first line of the script.
        from rendezvous.protocol.messages import Hello
        from rendezvous.transport.worker_link import WorkerLink

        env = self.env
        if sentence := shut_out(env.rank, env.context):
            print(sentence, file=sys.stderr)  # The launcher hears nothing of this process.
            return
        link = WorkerLink(env.endpoint, env.rank, env.incarnation)
        version = str(getattr(module, "__version__", ""))
        link.send(Hello(rank=env.rank, incarnation=env.incarnation, pid=os.getpid(), torch=version))
        self.driver = self._assemble(env, link, self.runtime)

    def connect_ahead(self) -> None:
        """The script is about to become another user, who may not meet the launcher."""
        if self.driver is not None:
            self.driver.worker.link.connect_ahead(CALLERS)
            self.driver.worker.left_buffers.open()

    def replaced(self, words: str) -> None:
        """Another program takes the place of this process: say so, while it can."""
        protected = self.driver is not None and self.driver.worker.protected
        reason = words if protected else f"unprotected: {words}"
        if self.driver is not None:
            self.driver.worker.reporter.notice(reason)
            self.driver.worker.link.flush()
            return
        from rendezvous.protocol.messages import Notice
        from rendezvous.transport.worker_link import WorkerLink

        env = self.env
        link = WorkerLink(env.endpoint, env.rank, env.incarnation)
        link.send(Notice(rank=env.rank, generation=0, event="notice.give", reason=reason))
        link.close()

    def failing(self, error: BaseException) -> None:
        """The script failed. If a peer's death is all that it says, it is not worth saying; and a
        process that cannot come to where the others are has not failed.
        """
        if self.driver is None:
            return
        if isinstance(error, NotReachable) and self.env.birth:
            from recoverrun.worker.step.leaving import leave

            leave(self.driver.worker, str(error))
        if isinstance(error, NotReachable):
            self.driver.worker.on_not_reached(str(error))
        self.driver.worker.failure = words_of(error)
        if self.driver.worker.protected:
            self.driver.await_end(error)

    def finish(self, code: int) -> None:
        """The script ended with `code`. Returns only if the interpreter may end by itself."""
        if self.driver is None:
            return
        worker = self.driver.worker
        if code == 0:
            if worker.env.finals:
                # Only for those who ask: the script may have left no descriptor to import with.
                from recoverrun.worker.tools import final_weights

                final_weights.leave(worker)
            self.driver.farewell()
        if not worker.protected and not worker.refusal:
            worker.link.close()
            return
        # Communicators that were left behind may hold threads which would never let us end.
        _end_threads_and_exit_functions()
        worker.link.close()
        run_script.flush()
        os._exit(code)


def _end_threads_and_exit_functions() -> None:
    """Do what the interpreter does first when it ends: the script may count on it."""
    shutdown: Any = getattr(threading, "_shutdown", None)
    if shutdown is not None:
        shutdown()
    atexit._run_exitfuncs()
