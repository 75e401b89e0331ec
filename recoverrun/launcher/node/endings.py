"""The end of a worker of this node: what the journal and the coordinator are told of it."""

import signal
import time

from recoverrun.launcher.node.supervisor import Gone
from recoverrun.launcher.node.worker_messages import Worker
from recoverrun.launcher.output.error_file import LastWords
from rendezvous.protocol import shared_memory
from rendezvous.protocol.exit_codes import ExitCode
from rendezvous.protocol.messages import ContextBuffer, Exited
from rendezvous.protocol.progress_page import page_beside, read_page
from rendezvous.protocol.records import Json, Record

CRASHES = (
    signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE, signal.SIGSYS,
)  # fmt: skip
"""Signals that a process brings upon itself."""


class Ending:
    """The end of one worker of `node`, with its exit code and its last words."""

    def __init__(
        self,
        worker: Worker,
        gone: Gone,
        last: LastWords,
        detected_s: float,
        node: str,
        *,
        starved: bool = False,
    ) -> None:
        """`detected_s`: for how long nobody here knew of it. `starved`: by the kernel, for want of
        memory.
        """
        self._worker = worker
        self._gone = gone
        self._node = node
        self._starved = starved
        self._error = last.error
        self._detected_s = detected_s
        self._age_s = _age_s(last, detected_s) if last.error else detected_s

    def record(self) -> Record:
        """The journal's line."""
        worker, code = self._worker, self._gone.code
        number = -code if code < 0 else 0
        fields: dict[str, Json] = {
            "rank": worker.rank,
            "pid": worker.child.pid,
            "code": code,
            "signal": number,
            "ours": self._gone.ours,
            "error": self._error,
            "incarnation": worker.incarnation,
            "detect_ms": round(self._detected_s * 1000, 3),
            "age_ms": round(self._age_s * 1000, 3),
        }
        if self._starved:
            fields["oom"] = True
        how = f"was ended by signal {number}" if number else f"exited with code {code}"
        how += " (out of memory)" * self._starved
        by = ", by our hand" if self._gone.ours else ""
        words = f": {self._error}" if self._error else ""
        return Record("worker.exit", f"rank {worker.rank} {how}{by}{words}", fields)

    def messages(self) -> tuple[ContextBuffer, Exited]:
        """The messages for the coordinator: what successors need of the worker, and that it is
        gone.
        """
        worker, gone = self._worker, self._gone
        context_buffer = ContextBuffer(
            rank=worker.rank,
            incarnation=worker.incarnation,
            contexts=_bounded(shared_memory.read(worker.context)),
            marks=shared_memory.read_marks(worker.context),
            buffers=shared_memory.newest(shared_memory.buffers_beside(worker.context)),
            begun=shared_memory.read_begun(
                worker.context, ended_by_us=gone.ours and not worker.hung
            ),
            by_itself=worker.hung or self._starved or _ended_itself(gone),
        )
        exited = Exited(
            rank=worker.rank,
            incarnation=worker.incarnation,
            node=self._node,
            code=gone.code,
            ours=gone.ours,
            error=self._error,
            detected_s=self._detected_s,
            age_s=self._age_s,
            step=-1 if (place := read_page(page_beside(worker.context))) is None else place.step,
            starved=self._starved,
        )
        return context_buffer, exited


def _ended_itself(gone: Gone) -> bool:
    """True if nobody else may have ended the worker, as SIGKILL and SIGTERM do."""
    return not gone.ours and (gone.code >= 0 or -gone.code in CRASHES)


def never_begun(rank: int, incarnation: int, node: str, error: str) -> Exited:
    """Return the end, for the coordinator, of a process of `rank` that could not be started, or
    without `error` was not to be.
    """
    return Exited(
        rank=rank,
        incarnation=incarnation,
        node=node,
        code=ExitCode.FAILED,
        ours=not error,
        error=error,
        detected_s=0.0,
    )


def _age_s(last: LastWords, detected_s: float) -> float:
    """Seconds since a worker wrote down its exception; the same machine's clock on both sides."""
    now = time.monotonic()
    if 0 <= last.written_at <= now:
        return max(detected_s, now - last.written_at)
    # Another program than our hooks wrote it: only a clock that may be set tells when.
    return max(detected_s, time.time() - last.changed_at) if last.changed_at else detected_s


def _bounded(contexts: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """The contexts within one payload's limit in all: the newest if both are too much."""
    return contexts if sum(map(len, contexts)) <= shared_memory.MOST_BYTES else contexts[-1:]
