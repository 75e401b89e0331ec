"""Parts of lost nodes are rebuilt byte for byte, for every pattern of losses."""

from itertools import combinations

import pytest

from rendezvous.protocol.exchange_messages import Read
from rendezvous.protocol.snapshot_messages import Circle, Holding
from rendezvous.snapshots import exchange_asking
from rendezvous.snapshots.exchange import Exchange
from rendezvous.snapshots.exchange_work import STALLED_S, Ask, Effect
from rendezvous.snapshots.identity import SnapshotId
from rendezvous.snapshots.parity_code import fastest
from tests.unit.exchanging_nodes import OF, PART, DictMemory, ExchangingNodes

SHAPES = [(1, 1), (2, 1, 1), (1, 3, 1, 2), (1,) * 5, (1, 2) * 3 + (1,), (1,) * 8]
CASES = [(shape, level) for shape in SHAPES for level in (1, 2) if level < len(shape)]


@pytest.mark.parametrize(("nproc", "level"), CASES)
def test_every_loss_that_parity_covers_is_made_good(nproc: tuple[int, ...], level: int) -> None:
    for many in range(1, level + 1):
        for lost in combinations(range(len(nproc)), many):
            nodes = ExchangingNodes(nproc, level)
            nodes.meet()
            found = nodes.lose(*lost)
            assert found
            nodes.meet(found)

            for node in nodes.places:
                assert nodes.memory[node].bays == {r: nodes.truth[r] for r in nodes.ranks(node)}
                assert len(nodes.memory[node].made) == 1, "its parity stands again"


@pytest.mark.parametrize(("nproc", "level"), CASES)
def test_after_that_the_next_loss_is_made_good_as_well(nproc: tuple[int, ...], level: int) -> None:
    nodes = ExchangingNodes(nproc, level)
    nodes.meet()
    for lost in (0, len(nproc) - 1, 0):
        found = nodes.lose(lost)
        assert found
        nodes.meet(found)

    for node in nodes.places:
        assert nodes.memory[node].bays == {r: nodes.truth[r] for r in nodes.ranks(node)}


@pytest.mark.parametrize(("nproc", "level"), CASES)
def test_one_loss_more_than_parity_covers_is_known(nproc: tuple[int, ...], level: int) -> None:
    nodes = ExchangingNodes(nproc, level)
    nodes.meet()

    assert nodes.lose(*range(level + 1)) is None


def test_parts_are_brought_where_ranks_have_changed_places() -> None:
    nodes = ExchangingNodes((1, 1, 1), 1)
    nodes.meet()
    nodes.memory[0].bays, nodes.memory[1].bays = nodes.memory[1].bays, nodes.memory[0].bays
    found = nodes.lose()
    assert found
    nodes.meet(found)

    assert nodes.memory[0].bays[0] == nodes.truth[0]
    assert nodes.memory[1].bays[1] == nodes.truth[1]


def test_a_part_that_was_damaged_on_its_way_is_rebuilt_again() -> None:
    nodes = ExchangingNodes((1, 1, 1), 1)
    nodes.meet()
    found = nodes.lose(1)
    assert found
    nodes.memory[1].spoils = {1}
    nodes.meet(found)

    assert nodes.told == ["a part that was rebuilt is not what it was: rank 1 is damaged"]
    assert nodes.memory[1].bays == {1: nodes.truth[1]}


def test_a_part_that_a_wire_without_a_key_has_damaged_is_asked_for_again() -> None:
    nodes = ExchangingNodes((1, 1, 1), 1)
    nodes.damaged = 3
    nodes.meet()
    found = nodes.lose(1)
    assert found
    nodes.meet(found)

    assert not nodes.damaged and not nodes.told
    assert nodes.memory[1].bays == {1: nodes.truth[1]}


def test_what_an_authenticated_wire_brings_is_not_summed_up_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    summed: list[int] = []
    usual = exchange_asking.crc32
    monkeypatch.setattr(
        exchange_asking, "crc32", lambda data: (summed.append(len(data)), usual(data))[1]
    )
    made = []
    for authenticated in (False, True):
        summed.clear()
        nodes = ExchangingNodes((1, 2, 1), 1, authenticated=authenticated)
        nodes.meet()
        made.append([memory.made for memory in nodes.memory])

        assert bool(summed) == (not authenticated)
    assert made[0] == made[1]


def test_a_node_without_memory_says_so_and_makes_none() -> None:
    nodes = ExchangingNodes((1, 1), 1)
    nodes.memory[0].full = "8.0 GiB are needed on this node, 1.0 GiB are to spare"
    nodes.meet()

    assert nodes.told == [
        "no parity of the snapshot of step 5: too little memory: 8.0 GiB are needed on this node, "
        "1.0 GiB are to spare"
    ]
    assert (nodes.exchanges[0].unable, nodes.memory[0].made) == (OF, {})
    assert len(nodes.memory[1].made) == 1


def test_what_is_not_there_or_is_too_much_is_not_given() -> None:
    nodes = ExchangingNodes((1, 1), 1)
    for offset, nbytes in ((0, PART + 1), (0, 10_000), (-1, 1), (10_000, 1)):
        (answer,) = nodes.exchanges[0].ask(
            "1",
            Read(
                serial=3, attempt=0, step=5, world=2, first_rank=0, nproc=1, offset=offset,
                nbytes=nbytes,
            ),
            1.0,
        )  # fmt: skip
        assert "there=False" in str(answer)


def test_an_older_circle_changes_nothing() -> None:
    nodes = ExchangingNodes((1, 1), 1)
    nodes.meet()
    older = Circle(attempt=0, number=9, level=1, ranks=(1, 1), ports=(5, 6), node=0)
    nodes.exchanges[0].join(older, 2.0)

    assert nodes.exchanges[0].heard == (1, 1)


def test_a_snapshot_of_which_a_node_tells_nothing_does_not_keep_the_next_from_its_share() -> None:
    """A node that took a lost one's place has its parts of the newer one alone."""
    older, newer = SnapshotId(0, 5), SnapshotId(0, 8)
    exchange = Exchange(DictMemory({0: b"bytes"}), fastest(), PART)
    circle = Circle(attempt=1, number=1, level=1, ranks=(1, 1), ports=(0, 1), node=0)
    order = (1, 1, older, newer)
    exchange.join(circle, 0.0)

    def asked(effects: list[Effect]) -> set[int]:
        return {one.request.step for one in effects if isinstance(one, Ask)}

    first = asked(exchange.hear(Holding(keeper=1, serial=1, order=order, held=()), 0.0))
    waits = asked(exchange.tick(STALLED_S - 0.1))
    at = exchange.deadline()
    then = asked(exchange.tick(STALLED_S))
    again = asked(exchange.tick(2 * STALLED_S))

    assert at is not None and at <= STALLED_S
    assert (first, waits, then, again) == ({5}, {5}, {8}, {5})


def test_of_whole_parts_of_row_parity_the_check_is_known() -> None:
    """`DictMemory` compares each with the bytes."""
    nodes = ExchangingNodes((2, 3, 2), 2)
    nodes.meet()
    written = [len(parts) for memory in nodes.memory for _, parts in memory.made.values()]

    assert 0 < sum(memory.checked for memory in nodes.memory) < sum(written)
