"""Shard mates that leave an execution: all at the same place, or the replica is over."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, Never

import pytest
from torch.distributed import HashStore

from ft_collectives.process_group.elastic import ElasticGroup
from recoverrun.worker.errors import NotReplayable
from recoverrun.worker.replay import shard_mates as shard_mates_module
from recoverrun.worker.replay.shard_mates import ShardMates, alike
from rendezvous.protocol.layout import Layout

LAYOUT = Layout(((0, 1), (2, 3)))
BOUND_S = 60.0


class Left(BaseException):
    """The process ends."""


class Native:
    group_name = "shards"
    begun = 0

    def _get_sequence_number_for_group(self) -> int:
        return self.begun


class Mate:
    """One rank of replica 1, whose executions begin operations and end in an error, or do not."""

    def __init__(self, rank: int, store: HashStore) -> None:
        self.native = Native()
        self.mates = ShardMates(rank, self._leave, lambda: LAYOUT, lambda: store)

    def _leave(self, words: str) -> Never:
        raise Left(words)

    def executes(self, begins: int, error: str) -> str:
        """The outcome in words."""
        try:
            with self.mates.together():
                self.native.begun += begins
                if error:
                    raise NotReplayable(error)
        except (NotReplayable, Left) as end:
            return f"{type(end).__name__}: {end}"
        return "done"


class Pair:
    """Ranks 2 and 3, each in a thread of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, executor: ThreadPoolExecutor) -> None:
        self.store = HashStore()
        self.two, self.three = (Mate(rank, self.store) for rank in (2, 3))
        self._threads = executor
        self._of = of = threading.local()  # whose operations are counted

        class Group:
            ranks = (2, 3)

            @property
            def native(self) -> Native:
                return of.native

        across: Any = SimpleNamespace(ranks=(0, 2), native=None)  # not of one replica: not counted
        monkeypatch.setattr(ElasticGroup, "instances", [Group(), across])

    def _run(self, mate: Mate, begins: int, error: str) -> str:
        self._of.native = mate.native
        return mate.executes(begins, error)

    def execute(self, *ends: tuple[int, str]) -> list[str]:
        """Each rank begins so many operations, and then this error ends it."""
        futures: list[Future[str]] = [
            self._threads.submit(self._run, mate, *end)
            for mate, end in zip((self.two, self.three), ends, strict=False)
        ]
        return [future.result(BOUND_S) for future in futures]


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    with ThreadPoolExecutor(2) as executor:
        yield Pair(monkeypatch, executor)


def test_mates_that_leave_at_the_same_place_go_on(pair: Pair) -> None:
    for number in range(3):
        found = pair.execute((2, "no data"), (2, "no token"))

        assert found == ["NotReplayable: no data", "NotReplayable: no token"], number


def test_keys_of_earlier_executions_do_not_pile_up(pair: Pair) -> None:
    for _ in range(20):
        pair.execute((1, "no data"), (1, "no data"))

    assert pair.store.num_keys() <= 6


def test_mates_that_leave_at_different_places_end(pair: Pair) -> None:
    two, three = pair.execute((1, "no data"), (2, "no token"))

    assert two.startswith("Left: no data; ") and "rank 3 " in two
    assert three.startswith("Left: no token; ") and "rank 2 " in three


def test_who_leaves_alone_ends(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_mates_module, "APART_S", 0.1)

    two, three = pair.execute((1, "no data"), (2, ""))

    assert two.startswith("Left: no data; ") and "rank 3 " in two
    assert three == "done"


def test_who_leaves_before_anything_is_begun_asks_nobody(pair: Pair) -> None:
    assert pair.execute((0, "no data"), (2, "")) == ["NotReplayable: no data", "done"]


def test_an_execution_that_comes_to_its_end_asks_nobody(pair: Pair) -> None:
    pair.execute((2, ""), (2, ""))

    assert pair.store.num_keys() <= 1  # of torch's own


@pytest.mark.parametrize("layout", [None, Layout(((0,), (1,), (2,), (3,)))])
def test_a_rank_that_is_a_replica_asks_nobody(
    layout: Layout | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone: Any = SimpleNamespace(ranks=(2,), native=Native())
    monkeypatch.setattr(ElasticGroup, "instances", [alone])
    mates = ShardMates(2, pytest.fail, lambda: layout, pytest.fail)

    with pytest.raises(NotReplayable, match="no data"), mates.together():
        alone.native.begun += 1
        raise NotReplayable("no data")


def test_a_store_that_waits_in_vain_is_waited_for_with_a_bound(
    monkeypatch: pytest.MonkeyPatch, pair: Pair
) -> None:
    asked: list[timedelta] = []
    wait = HashStore.wait

    def waiting(store: HashStore, keys: list[str], limit: timedelta) -> None:
        asked.append(limit)
        wait(store, keys, timedelta(milliseconds=50))

    monkeypatch.setattr(HashStore, "wait", waiting)

    pair.execute((1, "no data"), (0, ""))

    assert asked == [timedelta(seconds=5)]


def test_only_groups_that_both_are_in_are_compared() -> None:
    assert alike({"a": 1, "b": 2}, {"a": 1, "c": 9})
    assert not alike({"a": 1, "b": 2}, {"a": 1, "b": 3})
