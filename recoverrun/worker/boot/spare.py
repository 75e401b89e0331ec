"""A warm spare: a process that has imported what every worker imports, and waits to become one.

Started with `python -u -m recoverrun.worker --spare FD`, it has the launcher's streams and an
environment like a worker's. What it becomes is told over the socket FD; if that closes, nobody has
any use for it, and it ends. The script must find nothing else than in a process that was started
cold: no output of ours, no number drawn, and of the environment what the launcher says.

Its imports have the time that nobody else needs (SCHED_IDLE), but only where the system lets it
return from there: without that right (RLIMIT_NICE) it would stay slow as a worker.
"""

import importlib
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

from recoverrun.worker.instrumentation import Started
from rendezvous.protocol.process_title import entitle
from rendezvous.protocol.spare_order import END, READY, SpareOrder, decode

IMPORTED = (
    "torch",
    "torch._dynamo",  # what the first optimizer imports
    "torch.distributed.tensor",
    "torch.nn.parallel",
    "recoverrun.worker.boot.assembly",
    "rendezvous.transport.worker_link",
)
"""What takes time in a worker, and nothing of a framework: its modules are read by our hooks."""

RECEIVED_BYTES = 1 << 16


Start = Callable[[Mapping[str, str]], Started]


def wait(fd: int, start: Start) -> tuple[list[str], Start]:
    """Get ready, wait for the order, and be that worker.

    Returns the arguments that it has, and `start` as it is to be called here. Ends the process
    where there is no order any more.
    """
    entitle("spare", "process")
    line = socket.socket(fileno=fd)
    streams = _silence_imports()
    idle = _become_idle()
    copies = prepared()
    if idle:
        _leave_idle()  # Now: on a busy machine it would hear late that it is wanted.
    with suppress(OSError):
        line.send(READY)
    order = _order(line)
    line.close()
    return become(order, streams, copies, start)


def prepared() -> list["ImportedAlias"]:
    """Import what every worker imports. Returns what `become` has to renew."""
    for name in IMPORTED:
        importlib.import_module(name)
    return list(_copies())


def become(
    order: SpareOrder, streams: dict[int, int], copies: list["ImportedAlias"], start: Start
) -> tuple[list[str], Start]:
    """Take the streams and the environment of `order`; what `wait` returns.

    `streams` are copies of the launcher's own 1 and 2, for those that are no files.
    """
    _take_streams(streams, order)
    _take_environment(order)
    return list(order.arguments), lambda environ: _started(start, environ, copies)


def _order(line: socket.socket) -> SpareOrder:
    data = b""
    while not data.endswith(END):
        try:
            new = line.recv(RECEIVED_BYTES)
        except OSError:
            new = b""
        if not new:
            os._exit(0)  # Exit functions of what was imported are none of anybody's business.
        data += new
    return decode(data)


# ------------------------------------------------------------------------------- copies


@dataclass(frozen=True, slots=True)
class ImportedAlias:
    """A function that a module of torch has imported from another one under a name of its own, or
    has as a key of a table.
    """

    holder: dict[Any, Any]
    name: object  # of the copy; in a table the function itself
    owner: dict[str, Any]
    function: FunctionType

    def renew(self) -> None:
        """Have what stands in the place of the function now."""
        stand_in = self.owner.get(self.function.__name__, self.function)
        if stand_in is self.function:
            return
        if self.name is self.function:
            self.holder[stand_in] = self.holder.pop(self.function)
        else:
            self.holder[self.name] = stand_in


def _copies() -> Iterator[ImportedAlias]:
    """Yield those that a worker's hooks would not find: they take a copy to have its own name.

    In a process that was started cold the hooks come first, and the copies are of what they put in
    place.
    """
    for module_name, module in list(sys.modules.items()):
        if module_name.partition(".")[0] != "torch" or type(module) is not ModuleType:
            continue
        names = vars(module)
        for name, value in list(names.items()):
            if type(value) is FunctionType and value.__name__ != name:
                yield from _copy(names, name, value)
            elif type(value) is dict:
                for key in value:
                    if type(key) is FunctionType:
                        yield from _copy(value, key, key)


def _copy(holder: dict[Any, Any], name: object, function: FunctionType) -> Iterator[ImportedAlias]:
    owner = vars(sys.modules.get(function.__module__, sys))
    if owner.get(function.__name__) is function:
        yield ImportedAlias(holder, name, owner, function)


def _started(start: Start, environ: Mapping[str, str], copies: list[ImportedAlias]) -> Started:
    """Put the hooks in place, and into the copies that were made before them."""
    started = start(environ)
    for copy in copies:
        copy.renew()
    return started


# ------------------------------------------------------------------------------- streams


def _silence_imports() -> dict[int, int]:
    """Silence what imports print. Returns copies of the launcher's streams."""
    copies = {number: os.dup(number) for number in (1, 2)}
    null = os.open(os.devnull, os.O_WRONLY)
    for number in copies:
        os.dup2(null, number)
    os.close(null)
    return copies


def _take_streams(copies: dict[int, int], order: SpareOrder) -> None:
    for number, path in ((1, order.stdout), (2, order.stderr)):
        source = copies[number]
        if path:
            source = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            os.close(copies[number])
        os.dup2(source, number)
        os.close(source)


def _take_environment(order: SpareOrder) -> None:
    """Variables that Python or an import has set (LC_CTYPE, say) stay, as in a cold worker."""
    for name in [name for name in os.environ if name in order.environ]:
        del os.environ[name]
    os.environ.update(order.environ)


# ------------------------------------------------------------------------------- its time


def _become_idle() -> bool:
    """True if this process now runs only when nobody else wants to, and may return from that."""
    found: list[bool] = []
    trial = threading.Thread(target=lambda: found.append(_may_return()), name="recoverrun-idle")
    trial.start()
    trial.join()
    if found == [True]:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        return True
    return False


def _may_return() -> bool:
    """True if a thread can come back from SCHED_IDLE: tried in one that ends with that."""
    try:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    except OSError:
        return False
    return True


def _leave_idle() -> None:
    for name in os.listdir("/proc/self/task"):
        with suppress(OSError):  # A thread may end meanwhile.
            os.sched_setscheduler(int(name), os.SCHED_OTHER, os.sched_param(0))
