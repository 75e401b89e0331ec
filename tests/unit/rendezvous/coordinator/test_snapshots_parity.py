"""Snapshots of nodes that make parity for each other."""

from dataclasses import replace

from rendezvous.coordinator.parity_circle import ToExchanges
from rendezvous.coordinator.snapshots import PARITY_S, ToKeepers
from rendezvous.protocol.snapshot_messages import Exchanging, Holding
from rendezvous.snapshots.identity import NONE, SnapshotId
from tests.unit.snapshot_books import PLACES, Pair


def test_a_snapshot_is_safe_once_its_parity_stands_on_all_nodes() -> None:
    book, one = Pair(), (0, 5)
    book.has("a", one)
    assert book.has("b", one) == ["snapshot.whole"]
    assert book.has("a", one, parity=(one,)) == book.has("b", one) == []

    assert book.has("b", one, parity=(one,)) == ["snapshot.safe"]
    assert book.safe == SnapshotId(0, 5)


def test_the_one_whose_parity_is_made_is_not_given_up_for_a_newer_one() -> None:
    book = Pair()
    for name in ("a", "b", "a", "b"):
        book.has(name, (0, 5))
    for name in ("a", "b"):
        assert book.has(name, (0, 5), (0, 9)) == []

    assert book.next == SnapshotId(0, 5)


def test_parity_that_does_not_come_is_given_up_and_that_is_said() -> None:
    book, one = Pair(), (0, 5)
    for name in ("a", "b", "a", "b"):
        book.has(name, one, now=1.0)
    assert book.has("a", one, now=PARITY_S) == []

    assert book.has("b", one, now=1.0 + PARITY_S) == ["snapshot.degraded", "snapshot.safe"]


def test_a_node_without_memory_for_parity_is_not_waited_for() -> None:
    book, one = Pair(), (0, 5)
    for name in ("a", "b"):
        book.exchange(name, Exchanging(port=1, unable=one))
        book.has(name, one)
    book.has("a", one)

    assert book.has("b", one) == ["snapshot.degraded", "snapshot.safe"]


def test_what_all_went_back_to_stays_beside_nothing_newer_until_its_parity_stands() -> None:
    book, one = Pair(), (0, 5)
    book.begin(1, PLACES, SnapshotId(*one), 0.0)
    for name in ("a", "b"):
        assert book.has(name, one, (1, 9)) == []
    book.has("a", one, (1, 9), parity=(one,))

    assert book.has("b", one, (1, 9), parity=(one,)) == ["snapshot.parity", "snapshot.whole"]


def test_what_a_lost_node_had_is_not_waited_for_where_it_cannot_be_rebuilt() -> None:
    """Another one has its place, in the middle of the attempt; parity did not stand yet."""
    book, one = Pair(), (0, 5)
    book.begin(1, PLACES, SnapshotId(*one), 0.0)
    for name in ("a", "b"):
        book.has(name, one)
    book.lose("b")

    order = book.set_ranks({"a": range(2), "c": range(2, 4)})[0]

    assert isinstance(order, ToKeepers) and order.message.order == (1, 1, NONE, NONE)


def test_what_a_lost_node_had_is_rebuilt_for_the_one_that_has_its_place() -> None:
    book, one = Pair(), (0, 5)
    book.begin(1, PLACES, SnapshotId(*one), 0.0)
    book.has("b", one)
    book.has("a", one, parity=(one,))
    book.lose("b")

    assert book.set_ranks({"a": range(2), "c": range(2, 4)}) == []
    assert book.newest == SnapshotId(*one)


def test_another_coordinator_hears_from_orders_that_parity_stood() -> None:
    book, one = Pair(), (0, 5)
    book.begin(1, PLACES, SnapshotId(*one), 0.0)
    keeps = (1, 3, SnapshotId(1, 9), NONE)
    held = tuple((*SnapshotId(1, 9), 4, rank, 10) for rank in PLACES["a"])
    book.hear("a", Holding(keeper=1, serial=1, order=keeps, held=held), 0.0)

    assert book.has("b", (1, 9), (1, 12)) == []
    assert book.has("a", (1, 9), (1, 12)) == ["snapshot.whole"]


def test_all_exchanges_are_told_once_all_are_known_and_those_behind_again() -> None:
    book, one = Pair(), (0, 5)
    book.begin(1, {"a": range(2), "c": range(2, 4)}, SnapshotId(*one), 0.0)
    holding = Holding(keeper=1, serial=1, order=book._order, held=())
    shares = ((*one, 4, 1, 0, ((0, 2), (2, 2))),)
    held = tuple((*one, 4, rank, 10) for rank in range(2))
    book.hear("a", replace(holding, held=held, shares=shares), 0.0)
    assert book.exchange("a", Exchanging(port=7)) == []
    book.hear("c", holding, 0.0)
    (told,) = book.exchange("c", Exchanging(port=8))

    assert isinstance(told, ToExchanges)
    assert (told.launcher, told.message.ports, told.message.ranks) == ("", (7, 8), (2, 2))
    assert told.message.sources == ((1, ((0, 2), (2, 2)), (0, -1), (0, -1)),)
    assert book.exchange("a", Exchanging(port=7, heard=(1, 1))) == []
    (again,) = book.exchange("c", Exchanging(port=8))
    assert isinstance(again, ToExchanges) and again.launcher == "c"
    (anew,) = book.exchange("c", Exchanging(port=9))
    assert isinstance(anew, ToExchanges)
    assert (anew.launcher, anew.message.number, anew.message.ports) == ("", 2, (7, 9))
