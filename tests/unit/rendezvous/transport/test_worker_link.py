"""The store of the launcher is reached from any thread, also once nobody can connect any more."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rendezvous.protocol.codec import decode, encode
from rendezvous.protocol.store_messages import StoreAnswer, StoreCall
from rendezvous.transport.station import Station
from rendezvous.transport.worker_link import WorkerLink

CALL = StoreCall(
    rank=1, serial=0, generation=0, op="count", keys=(), values=(), amount=0, timeout_s=5.0
)


@dataclass
class Launcher:
    """A store that counts the calls that it hears, and the connections over which they come."""

    path: Path
    callers: set[bytes] = field(default_factory=set)
    over: threading.Event = field(default_factory=threading.Event)

    def serve(self) -> None:
        station = Station()
        router = station.listen_ipc(str(self.path))
        self.ready.set()
        while not self.over.is_set():
            station.wait(0.05)
            while (incoming := router.receive()) is not None:
                if incoming.frames[-1] == b"":
                    continue  # from now on the worker can be reached
                call = decode(incoming.frames[-1])
                assert isinstance(call, StoreCall)
                self.callers.add(incoming.sender)
                answer = StoreAnswer(
                    rank=1, serial=call.serial, status="ok", values=(), number=len(self.callers)
                )
                router.send(incoming.sender, encode(answer))
        station.close()

    def __post_init__(self) -> None:
        self.ready = threading.Event()
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()
        self.ready.wait()


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    made = Launcher(tmp_path / "s")
    try:
        yield made
    finally:
        made.over.set()
        made.thread.join()


def _asked_in_a_thread(link: WorkerLink) -> StoreAnswer:
    answers: list[StoreAnswer] = []
    thread = threading.Thread(target=lambda: answers.append(link.call(CALL, CALL.timeout_s)))
    thread.start()
    thread.join()
    return answers[0]


def test_threads_that_come_later_call_over_what_was_connected_ahead(launcher: Launcher) -> None:
    link = WorkerLink(f"ipc://{launcher.path}", 1, 0)
    link.connect_ahead(2)
    launcher.path.unlink()  # as good as closed: nobody finds it any more

    numbers = [link.call(CALL, CALL.timeout_s).number]
    numbers += [_asked_in_a_thread(link).number for _ in range(3)]
    link.close()

    assert numbers == [2, 2, 2, 2]
