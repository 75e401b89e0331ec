"""The CPU time of our code in one worker, by function. Imported by the measured script.

Functions of the hooks and what lies below them are replaced by ones that read the thread's CPU
clock before and after. A call costs about a microsecond more, so functions that are called for
every variable or attribute are left out: their time is in that of their callers.
"""

import functools
import gc
import importlib
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

MODULES = (
    "recoverrun.worker.step.driver",
    "recoverrun.worker.step.control_thread",
    "recoverrun.worker.step.worker_state",
    "recoverrun.worker.tracking.loop_tracker",
    "recoverrun.worker.tracking.script_runtime",
    "recoverrun.worker.replay.executor",
    "recoverrun.worker.verification.drift_check",
    "recoverrun.worker.replay.captures",
    "recoverrun.worker.context.slot_context",
    "recoverrun.worker.replay.earlier_transactions",
    "recoverrun.worker.context.evidence",
    "recoverrun.worker.rng.registry",
    "recoverrun.worker.context.context_buffer",
    "recoverrun.worker.step.settlement",
    "recoverrun.worker.verification.proofs",
    "recoverrun.worker.rng.host_streams",
    "recoverrun.worker.rng.skip_ahead",
    "recoverrun.worker.rng.streams",
    "recoverrun.worker.data.loader_iterator",
    "recoverrun.worker.data.loader_opening",
    "recoverrun.worker.context.observer",
    "recoverrun.worker.make_up.make_up",
    "recoverrun.worker.replay.data_sources",
    "recoverrun.worker.step.failpoints",
    "recoverrun.worker.strategies.manual_allreduce",
    "recoverrun.worker.strategies.ddp",
    "recoverrun.worker.strategies.fsdp1",
    "recoverrun.worker.strategies.fsdp2",
    "ft_collectives.step.reducer",
    "ft_collectives.communicators.fabric",
    "ft_collectives.step.machine",
    "ft_collectives.process_group.elastic",
    "ft_collectives.process_group.survivors",
    "rendezvous.transport.station",
    "rendezvous.protocol.codec",
    "rendezvous.protocol.shared_memory",
)

SMALL = frozenset(
    {
        "iterate",  # these two look at the frame that calls them
        "enter",
        "is_simple",
        "is_own",
        "is_small_tensor",
        "same",
        "_pack",
        "_unpack",
        "quiet",
        "acting",
        "find_frame",
        "objects_of",
        "microbatch",
        "step",
        "_generation",
        "vote_channel",
        "strike",
        "belongs_to_process",
        "forward_begins",
        "counting_backward",
        "check",
        "_advance",
        "_at_middle",
        "drawn",
        "_serves",
        "_padded_numel",
        "alone",
        "_current",
    }
)
"""Called too often, generators, or nothing to measure."""

TORCH = "torch: "
"""Begins the names of what ours calls and the script would have called without us."""

PACKAGES = ("recoverrun", "ft_collectives", "rendezvous")


class Profile:
    """Measures from `begin` to `end`. Make it after `import torch`, before the model."""

    def __init__(self) -> None:
        self.calls: dict[str, int] = {}
        self.own: dict[str, float] = {}
        self.whole: dict[str, float] = {}
        self.threads: dict[str, float] = {}
        self._inner = threading.local()
        self._threads_at: dict[int, tuple[str, float]] = {}
        self._steps = 1
        self._on = False
        if "recoverrun.worker.step.driver" in sys.modules:
            for name in MODULES:
                self._wrap_module(importlib.import_module(name))
            self._rebind()
            self._wrap_torch()

    def begin(self) -> None:
        self._threads_at = _threads()
        self._on = True

    def end(self, steps: int) -> None:
        self._on = False
        self._steps = steps
        for tid, (name, now_s) in _threads().items():
            _, then_s = self._threads_at.get(tid, ("", 0.0))
            self.threads[name] = self.threads.get(name, 0.0) + 1000 * (now_s - then_s) / steps

    def rows(self) -> list[tuple[str, float, float, float]]:
        """(function, calls a step, own ms a step, ms with what it calls), dearest first."""
        each = self._steps
        return sorted(
            (
                (name, calls / each, 1000 * self.own[name] / each, 1000 * self.whole[name] / each)
                for name, calls in self.calls.items()
            ),
            key=lambda row: -row[2],
        )

    # --------------------------------------------------------------------------- wrapping

    def _wrap_module(self, module: Any) -> None:
        short = module.__name__.removeprefix("recoverrun.worker.")
        for name, value in list(vars(module).items()):
            if getattr(value, "__module__", "") != module.__name__ or name in SMALL:
                continue
            if isinstance(value, FunctionType):
                self._replace(value, self._timed(f"{short}.{name}", value))
            elif isinstance(value, type):
                self._wrap_class(f"{short}.{name}", value)

    def _wrap_class(self, name: str, owner: type) -> None:
        for method, value in list(vars(owner).items()):
            dunder = method.startswith("__") and method != "__next__"
            if isinstance(value, FunctionType) and not dunder and method not in SMALL:
                setattr(owner, method, self._timed(f"{name}.{method}", value))

    def _replace(self, original: FunctionType, timed: Callable[..., Any]) -> None:
        """Also where `from module import function` has copied it to."""
        for name, module in list(sys.modules.items()):
            if name.split(".")[0] in PACKAGES:
                for key, value in list(vars(module).items()):
                    if value is original:
                        setattr(module, key, timed)

    def _rebind(self) -> None:
        """Bound methods that were handed out before now."""
        from recoverrun.worker.step.driver import Driver

        for one in gc.get_objects():
            if isinstance(one, Driver):
                one.worker.runtime.on_top = one.iteration_begins

    def _wrap_torch(self) -> None:
        from torch.distributed.fsdp._fully_shard import _fsdp_param_group
        from torch.utils.data.dataloader import _BaseDataLoaderIter

        taken = _BaseDataLoaderIter.__next__
        _BaseDataLoaderIter.__next__ = self._timed(f"{TORCH}DataLoader", taken)
        for cell in _fsdp_param_group.foreach_reduce.__closure__ or ():
            inner = cell.cell_contents
            if isinstance(inner, FunctionType) and inner.__name__ == "foreach_reduce":
                cell.cell_contents = self._timed(f"{TORCH}foreach_reduce", inner)

    def _timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        self.calls[name] = 0
        self.own[name] = self.whole[name] = 0.0
        inner = self._inner

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if not self._on:
                return function(*args, **kwargs)
            before = getattr(inner, "spent", 0.0)
            inner.spent = 0.0
            began = time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                passed = time.thread_time() - began
                self.calls[name] += 1
                self.own[name] += passed - inner.spent
                self.whole[name] += passed
                inner.spent = before + passed

        return timed


def _threads() -> dict[int, tuple[str, float]]:
    """CPU seconds of each thread of this process, with the name that it has in Python or in C."""
    named = {thread.native_id: thread.name for thread in threading.enumerate()}
    found = {}
    for path in Path("/proc/self/task").iterdir():
        tid = int(path.name)
        try:
            name = named.get(tid) or (path / "comm").read_text().strip()
            found[tid] = name, time.clock_gettime((~tid << 3) | 6)  # the kernel's id of its clock
        except OSError:
            continue  # it has ended
    return found
