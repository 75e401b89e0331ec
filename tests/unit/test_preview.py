"""Who reads gradients in the first step: all ranks or some, told by real threads over one store."""

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ft_collectives.c10d import DistStoreError
from recoverrun.hooks import preview
from recoverrun.hooks.carried import Carried
from recoverrun.hooks.preview import Preview

RANKS = 3
BOUND_S = 20.0


class Store:
    """What all ranks share; every wait in it fails once `over`."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.counts: dict[str, int] = {}
        self.changed = threading.Condition()
        self.over = False
        self.patience_s = BOUND_S

    def set_timeout(self, timeout: Any) -> None:
        self.patience_s = timeout.total_seconds()

    def add(self, key: str, amount: int) -> int:
        with self.changed:
            self.counts[key] = self.counts.get(key, 0) + amount
            return self.counts[key]

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        with self.changed:
            if self.over:
                raise DistStoreError("the generation is over")
            self.changed.notify_all()
            if not expected and key not in self.values:
                self.values[key] = desired
            return self.values[key]

    def get(self, key: str) -> bytes:
        with self.changed:
            self.changed.wait_for(lambda: key in self.values or self.over, self.patience_s)
            if key not in self.values:
                raise DistStoreError("nobody said so")
            return self.values[key]

    def end(self) -> None:
        with self.changed:
            self.over = True
            self.changed.notify_all()


def ranks(store: Store) -> list[Preview]:
    """All after the first backward of the first step."""
    fabric = SimpleNamespace(view=SimpleNamespace(generation=1))
    made = []
    for _ in range(RANKS):
        session: Any = SimpleNamespace(
            promise=None, machine=object(), dirty=True, acting=False, microbatch=1,
            runtime=SimpleNamespace(reads_gradients=True), fabric=fabric,
            layout=SimpleNamespace(world_size=RANKS), store=lambda generation: store,
        )  # fmt: skip
        made.append(Preview(session))
        made[-1].backward_done()
    return made


def together(*works: Callable[[], object]) -> list[object]:
    """What each returns; all run at the same time."""
    found: list[object] = [None] * len(works)

    def work(place: int) -> None:
        found[place] = works[place]()

    threads = [threading.Thread(target=work, args=(place,)) for place in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(BOUND_S)
    assert not any(thread.is_alive() for thread in threads), "somebody waits for ever"
    return found


def test_where_all_read_all_know() -> None:
    a, b, c = ranks(Store())

    assert together(a._all_read, b._all_read, c._all_read) == [True] * 3


def test_one_that_goes_on_is_enough_for_a_no() -> None:
    a, b, c = ranks(Store())

    assert together(a._all_read, b._all_read, c.goes_on) == [False, False, None]


def test_a_rank_that_talks_first_does_not_read_at_the_moment_before() -> None:
    a, b, c = ranks(Store())

    def talk_and_read(one: Preview) -> bool:
        one.talks()
        return one._all_read()

    assert together(*(lambda one=one: talk_and_read(one) for one in (a, b, c))) == [True] * 3


def test_reading_alone_before_a_barrier_ends_with_the_barrier() -> None:
    a, b, c = ranks(Store())

    def read_and_talk() -> bool:
        read = a._all_read()
        a.talks()
        return read

    assert together(read_and_talk, b.talks, c.talks)[0] is False


def test_after_all_have_gone_on_nobody_waits() -> None:
    a, b, c = ranks(Store())
    for one in (b, c):
        one.talks()
        one.goes_on()
    a.talks()

    assert together(a._all_read) == [False]


def test_a_lost_rank_ends_the_wait() -> None:
    store = Store()
    a, b, _ = ranks(store)

    assert together(a._all_read, b._all_read, store.end)[:2] == [False, False]


def test_patience_ends_with_one_answer_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preview, "PATIENCE_S", 0.05)
    a, b, c = ranks(Store())

    assert together(a._all_read, b._all_read) == [False, False]
    assert together(c._all_read) == [False]  # too late


def test_nothing_is_said_where_no_source_mentions_gradients() -> None:
    store = Store()
    a, *_ = ranks(store)
    a._session.runtime.reads_gradients = False

    a.talks()
    a.goes_on()

    assert not a._all_read() and not store.values


class Plain:
    lender = None
    early = True

    def __init__(self, *params: torch.Tensor) -> None:
        self.params = list(params)

    def owners(self) -> list[torch.Tensor]:
        return self.params


def session_of(strategy: Any) -> Any:
    refused: list[str] = []
    return SimpleNamespace(
        strategy=strategy, dirty=False, acting=False, runtime=SimpleNamespace(active=True),
        refuse=refused.append, refused=refused,
    )  # fmt: skip


def with_grad(value: float | None) -> torch.Tensor:
    param = torch.zeros(2, requires_grad=True)
    param.grad = None if value is None else torch.full((2,), value)
    return param


def test_what_was_delivered_before_is_no_part_of_a_sum() -> None:
    one, other = with_grad(2.0), with_grad(None)
    carried = Carried(session_of(Plain(one, other)))

    carried.backward_begins()
    assert one.grad is not None and one.grad.tolist() == [2.0, 2.0]  # not delivered by us
    carried.deliver()
    carried.backward_begins()
    assert one.grad.tolist() == [0.0, 0.0]
    one.grad += 1.0
    carried.deliver()

    assert one.grad.tolist() == [3.0, 3.0]
    assert other.grad is None


def test_what_is_dropped_does_not_come_back() -> None:
    one = with_grad(2.0)
    carried = Carried(session_of(Plain(one)))
    carried.deliver()
    carried.backward_begins()

    carried.drop()
    carried.deliver()

    assert one.grad is not None and one.grad.tolist() == [0.0, 0.0]


def test_what_is_reduced_by_hand_twice_is_refused() -> None:
    strategy = Plain(with_grad(2.0))
    strategy.early = False
    session = session_of(strategy)
    carried = Carried(session)
    carried.deliver()

    carried.backward_begins()

    assert session.refused and not session.runtime.active
