"""A newcomer's wait for its state ends with its donor.

The donor tells where the state is only once it has packed it. If it is lost before, no word
of it comes; and a connection to a node that is gone stays silent for long. So another thread
fetches, while the script's own waits for that, or for a view without the donor.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from recoverrun.worker.arrival.state_source import StateLost
from recoverrun.worker.step.worker_state import WorkerState
from rendezvous.protocol.donors import may_tell

Fetched = TypeVar("Fetched")


def from_donor(worker: WorkerState, donor: int, fetch: Callable[[], Fetched]) -> Fetched:
    """Return what `fetch` returns, which is called in a thread of its own.

    Raises what it raises, and StateLost once a view is without the rank `donor`: `fetch` may go on
    then for as long as it likes.
    """
    future: Future[Fetched] = Future()

    def carry_out() -> None:
        try:
            found = fetch()
        except Exception as error:  # protects the waiting thread from silence: it is raised there
            future.set_exception(error)
        else:
            future.set_result(found)
        with worker.changed:
            worker.changed.notify_all()

    def over() -> bool:
        view = worker.view
        return future.done() or (view is not None and not may_tell(donor, view))

    threading.Thread(target=carry_out, name="recoverrun-fetch", daemon=True).start()
    with worker.changed:
        worker.changed.wait_for(over)
    if not future.done():
        raise StateLost(f"rank {donor}, which was to tell it, is lost")
    return future.result()
