"""A collective that is not waited for is found wherever the script keeps what it waits by."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch.distributed as dist

from recoverrun.worker.context.object_graph import holdings
from recoverrun.worker.snapshots.open_collectives import under_way


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Handle(dist.Work):
    """Of a collective; also torch's own are made by the process group alone."""

    def __init__(self, *, done: bool) -> None:
        super().__init__()
        self._done = done

    def is_completed(self) -> bool:
        return self._done


def _found(**variables: Any) -> str:
    return under_way(holdings([variables], frozenset()), [("<train>", variables)])


def test_it_is_found_in_variables_and_in_what_they_hold() -> None:
    assert _found(work=Handle(done=False)) == "work"
    assert _found(sums={"loss": Handle(done=False)}) == "sums['loss']"
    assert _found(works=[Handle(done=True), Handle(done=False)]) == "works[1]"


def test_one_that_is_done_is_none() -> None:
    assert _found(work=Handle(done=True), works=[Handle(done=True)], loss=0.5) == ""


def test_without_a_group_nothing_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_initialized", lambda: False)

    assert _found(work=Handle(done=False)) == ""
