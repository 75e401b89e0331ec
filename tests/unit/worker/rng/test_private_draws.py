"""Numbers that a rank draws in code for it alone: counted apart, and followed by its deputy."""

from collections.abc import Iterator

import msgpack
import pytest
import torch

from recoverrun.worker.context.slot_context import Context
from recoverrun.worker.rng import private_draws
from recoverrun.worker.rng.private_draws import PrivateDraws, draw_sites, forget_private
from recoverrun.worker.rng.streams import Streams, read_streams, restore_streams
from recoverrun.worker.tracking.rank0_gate import KEPT, Rank0Gate
from tests.unit.contexts import at, draw
from tests.unit.private_draws import Runtime, by_itself, stream


@pytest.fixture(autouse=True)
def _streams_put_back() -> Iterator[None]:
    before = read_streams()
    forget_private()
    yield
    forget_private()
    restore_streams(before)


def test_only_what_is_drawn_in_there_is_counted() -> None:
    torch.manual_seed(3)
    draw(5)
    by_itself(700)
    draw(6)
    by_itself(2)

    assert read_streams().private == (702,)


def test_what_stands_inside_counts_once_and_what_another_is_acted_by_not_at_all() -> None:
    torch.manual_seed(3)
    runtime = Runtime()
    with PrivateDraws(runtime, "train.py:5"):
        draw(3)
        by_itself(4, runtime)
    runtime.acting_rank = 1
    by_itself(50, runtime)
    runtime.acting_rank, runtime.active = None, False
    by_itself(50, runtime)

    assert read_streams().private == (7,)


@pytest.mark.parametrize("seed", [3, 4])
def test_seeding_begins_anew(seed: int) -> None:
    torch.manual_seed(3)
    by_itself(9)
    private_draws.seeding(runtime := Runtime())  # type: ignore[arg-type]
    torch.manual_seed(seed)

    assert read_streams().private == (0,) and runtime.seedings == 1


def test_a_seed_that_nobody_saw_begins_anew_too() -> None:
    torch.manual_seed(3)
    by_itself(9)
    torch.default_generator.manual_seed(4)

    assert read_streams().private == (0,)


def test_what_is_seeded_and_put_back_inside_is_as_if_nothing_was_drawn() -> None:
    torch.manual_seed(3)
    by_itself(9)
    runtime = Runtime()
    with PrivateDraws(runtime, "train.py:5"):
        kept = torch.get_rng_state()
        private_draws.seeding(runtime)  # type: ignore[arg-type]
        torch.manual_seed(1)
        draw(8)
        torch.set_rng_state(kept)

    assert read_streams().private == (9,)


def test_where_something_was_drawn_is_remembered_and_travels() -> None:
    draw_sites.clear()
    by_itself(0)
    assert not draw_sites
    by_itself(3)
    assert draw_sites == {"train.py:5"}

    left = at(3, alone_at=frozenset(draw_sites))

    assert Context.unpack(left.pack()).alone_at == {"train.py:5"}


@pytest.mark.parametrize(
    ("places", "done"), [({"a.py:1"}, True), ({"a.py:1", "a.py:2"}, False), (set(), False)]
)
def test_who_passed_a_place_before_it_was_the_deputy_missed_it(
    places: set[str], done: bool
) -> None:
    gate = Rank0Gate(1)
    gate.first("a.py:2", True, False)
    gate.is_deputy = lambda: True
    gate.first("a.py:1", True, False)

    assert gate.has_done(0, frozenset(places), since=None) is done
    assert not gate.has_done(2, frozenset(places), since=None)


def test_what_is_missed_again_and_again_is_remembered_once() -> None:
    """Nobody may ever commit anything: the script has one replica, say."""
    gate = Rank0Gate(1)
    for _ in range(9):
        gate.first("a.py:2", True, False)

    assert list(gate.missed_at) == [(None, "a.py:2")]


def test_of_earlier_transactions_only_so_much_is_remembered() -> None:
    gate = Rank0Gate(1)
    for step in range(KEPT + 5):
        gate.last_point = lambda step=step: (step, 0, 1, 0)  # type: ignore[misc]
        gate.first("a.py:2", True, False)
        gate.begin_anew()

    assert len(gate.missed_at) == KEPT
    assert not gate.has_done(0, frozenset(), since=(KEPT + 4, 0, 1, 0))
    assert not gate.has_done(0, frozenset(), since=(5, 0, 1, 0))
    assert gate.has_done(0, frozenset(), since=(4, 0, 1, 0)), "forgotten"


def test_counts_travel() -> None:
    streams = stream(7, 30, lonely=4)

    travelled = Streams.unpack(msgpack.unpackb(msgpack.packb(streams.pack())))

    assert travelled == streams and travelled.private == (4,)


@pytest.mark.parametrize("counts", [None, [], [1, 2], [-1], ["1"], [True]])
def test_what_is_no_count_is_refused(counts: object) -> None:
    *streams, _ = read_streams().pack()

    with pytest.raises(ValueError, match="private draws"):
        Streams.unpack([*streams, counts])
