"""The stack of the script's thread, told by the control thread: for a launcher that suspects a
hang.

All stacks are left for the launcher, which keeps them in the run directory. What is told is a
digest of the script's own stack, so that two looks can be compared, and its innermost frame for
people. While code keeps Python's global lock nothing is told: that is evidence, too.
"""

import dis
import faulthandler
import os
import select
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from types import CodeType, FrameType
from zlib import crc32

import torch.distributed as dist

from recoverrun.worker import own_files
from rendezvous.protocol.hang_messages import ShowStack, Stack
from rendezvous.protocol.progress_page import DUMP_SIGNAL, dump_beside, stacks_beside

SAMPLES, SAMPLE_S = 8, 0.005
"""So often, and so far apart, the thread is looked at to see whether it turns in a loop."""

DEBUGGERS = frozenset({"bdb.py", "pdb.py", "pydevd.py", "debugpy.py"})
"""Of a stack in which a person is at work."""

FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC

MOST_SHOWN = 160
"""Of an exception, characters."""

OUTPUTS = (1, 2)
"""The descriptors of standard output and error."""

TORCH = os.path.dirname(os.path.dirname(os.path.abspath(dist.__file__)))
COMMUNICATION = os.path.join(TORCH, "distributed")


def arm(context: str) -> None:
    """Have faulthandler write all stacks at DUMP_SIGNAL. The file stays open for it."""
    if context:
        file = os.open(dump_beside(context), FLAGS, 0o600)
        faulthandler.register(DUMP_SIGNAL, file=file, all_threads=True)


def show(
    asked: ShowStack,
    context: str,
    generation: int,
    joined: tuple[tuple[int, int], ...] = (),
    *,
    failure: str = "",
) -> Stack:
    """Leave all stacks beside `context`, and tell where the script's thread is.

    `joined` is of its channels: (key, operations begun). `failure`: the exception that ended the
    script, if one has. A process may hang after it, in a thread or an exit function: then it is the
    cause.
    """
    if context:
        _leave(stacks_beside(context), f"look {asked.look}, pid {os.getpid()}\n")
    turns = _turns()
    stack = list(_frames(_innermost()))
    words = [(frame.f_code.co_filename, frame.f_lineno) for frame in stack]
    return Stack(
        rank=asked.rank,
        generation=generation,
        hang=asked.hang,
        look=asked.look,
        digest=crc32(repr(words).encode()),
        frame=_named(stack) + _after(failure),
        turns=turns,
        debugged=any(os.path.basename(name) in DEBUGGERS for name, _ in words),
        within=_in_communication(stack),
        unread=_unread(),
        joined=joined,
    )


def waits_for_others(thread: int) -> bool:
    """True if that thread is in torch's own communication now: it waits for its shard mates."""
    return _in_communication(list(_frames(sys._current_frames().get(thread))))


def _in_communication(stack: list[FrameType]) -> bool:
    return bool(stack) and stack[0].f_code.co_filename.startswith(COMMUNICATION)


def _unread() -> bool:
    """True if standard output or error is full: a pager waits for a key, say, or Ctrl-S was typed.

    A descriptor that is closed, or that nobody can read any more, fails at once and fills nothing.
    """
    outputs = select.poll()
    for fd in OUTPUTS:
        outputs.register(fd, select.POLLOUT)
    return len(outputs.poll(0)) < len(OUTPUTS)


def _leave(path: str, heading: str) -> None:
    """Into shared memory, never to a disk: views are heard by the same thread. What cannot be
    written must not end it, either.
    """
    with suppress(OSError), open(path, "w") as file:
        file.write(heading)
        file.flush()
        faulthandler.dump_traceback(file, all_threads=True)


def _innermost() -> FrameType | None:
    """The innermost frame of the script's thread."""
    return sys._current_frames().get(threading.main_thread().ident or 0)


def _turns() -> bool:
    """True if the thread is always found in the same code, between two turns of a loop that may
    have no end.
    """
    found: set[tuple[CodeType, int]] = set()
    for number in range(SAMPLES):
        if number:
            time.sleep(SAMPLE_S)
        frame = _innermost()
        if frame is None or frame.f_lasti < 0:
            return False
        found.add((frame.f_code, frame.f_lasti))
        if "JUMP_BACKWARD" not in dis.opname[frame.f_code.co_code[frame.f_lasti]]:
            return False
    one_code = len({code for code, _ in found}) == 1
    return one_code and not any(_is_for(code, at) for code, at in found)


def _is_for(code: CodeType, at: int) -> bool:
    """True if the jump at offset `at` goes back to the head of a `for`: what it goes over ends."""
    known = {one.offset: one for one in dis.get_instructions(code)}
    head = known[known[at].argval]
    while head.opname == "EXTENDED_ARG":
        head = known[head.offset + 2]
    return head.opname == "FOR_ITER"


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    """The frames from the innermost outwards, without our own."""
    while frame is not None:
        if not own_files.has(frame.f_code.co_filename):
            yield frame
        frame = frame.f_back


def _named(stack: list[FrameType]) -> str:
    """The innermost frame that is neither torch's nor Python's, as people look for it."""
    python = os.path.dirname(os.__file__)
    outside = os.path.join(python, "site-packages")
    for frame in stack:
        name = frame.f_code.co_filename
        of_python = name.startswith((python, "<")) and not name.startswith(outside)
        if not of_python and not name.startswith(TORCH):
            return _at(frame)
    return _at(stack[0]) if stack else ""


def _after(failure: str) -> str:
    lines = failure.strip().splitlines()
    return f", after the script has ended with {lines[0][:MOST_SHOWN]}" if lines else ""


def _at(frame: FrameType) -> str:
    code = frame.f_code
    return f"{os.path.basename(code.co_filename)}:{frame.f_lineno} {code.co_qualname}"
