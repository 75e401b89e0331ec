"""ZeroMQ's sockets, as far as no launcher is needed to see what they do."""

import subprocess
import sys
import textwrap
import threading
import time

import zmq

from rendezvous.transport.sockets import END_S, end


def test_a_context_without_sockets_ends_at_once() -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.socket(zmq.PAIR).close(linger=0)

    began_at = time.monotonic()

    assert end(context, 0)
    assert time.monotonic() - began_at < END_S
    assert context.closed


def test_nobody_waits_for_ever_for_a_context_that_does_not_end() -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    stuck = context.socket(zmq.PAIR)

    assert not end(context, 100)

    (left,) = [one for one in threading.enumerate() if one.name == "recoverrun-end"]
    stuck.close(linger=0)
    left.join(10.0)
    assert not left.is_alive()


def test_a_context_that_does_not_end_keeps_no_process() -> None:
    program = """
        import zmq
        from rendezvous.transport.sockets import end
        context = zmq.Context()
        stuck = context.socket(zmq.PAIR)
        stuck.linger = -1
        assert not end(context, 0)
        print("on")
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]

    told = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)

    assert (told.stdout, told.stderr) == ("on\n", "")
