"""The origins of iterators that ranks tell each other, and what follows for those made after a
loss.
"""

from dataclasses import replace
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    RandomSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
)

from recoverrun.worker.data.iterator_origin import Origin, OriginPairs, advanced_generators
from recoverrun.worker.data.loader_clone import clone_for
from recoverrun.worker.data.loader_state import LoaderState
from recoverrun.worker.data.rank_substitution import RankPair
from recoverrun.worker.data.subset_rows import apply_rows, rows_of, subset_rows_of
from recoverrun.worker.errors import NotReplayable
from recoverrun.worker.rng.streams import tensor_bytes

DATA = TensorDataset(torch.arange(100))


def loader(rows: Any, **options: Any) -> "DataLoader[Any]":
    return DataLoader(Subset(DATA, rows), 2, **options)


def origin(made: "DataLoader[Any]") -> Origin:
    point = LoaderState.of(made)
    return Origin.of(made, point.streams, point.generator_states)


def items(made: "DataLoader[Any]") -> list[int]:
    return [int(one) for (batch,) in made for one in batch]


@pytest.mark.parametrize(
    ("rows", "cut"),
    [
        (range(3, 90, 7), range(3, 90, 7)),
        (list(range(3, 90, 7)), range(3, 90, 7)),
        (torch.arange(9, 3, -2), range(9, 3, -2)),
        (numpy.arange(5), range(5)),
        ([4], range(4, 5)),
        ([], range(0)),
        ([1, 2, 4], numpy.array([1, 2, 4], dtype="int64").tobytes()),
        ([1, 1], numpy.array([1, 1], dtype="int64").tobytes()),
        (["a"], "list"),
        ([1 << 70], "list"),
    ],
)
def test_rows_are_told_by_what_they_are_not_by_how_they_are_written(rows: Any, cut: Any) -> None:
    assert rows_of(rows) == cut


def test_a_long_list_is_told_by_a_mark() -> None:
    rows = [0, *range(2048)]

    mark = rows_of(rows)

    assert isinstance(mark, str)
    assert mark == rows_of(torch.tensor(rows))
    assert mark != rows_of([1, *range(2048)])


@pytest.mark.parametrize(
    "own", [range(0, 100, 3), list(range(9)), torch.tensor([5, 1]), numpy.array([5, 1])]
)
@pytest.mark.parametrize("theirs", [range(1, 100, 3), [7, 7, 2]])
def test_a_clone_goes_through_the_rows_of_the_other_rank(own: Any, theirs: Any) -> None:
    made = loader(own)
    clone = clone_for(made, RankPair(0, 1))

    apply_rows(clone, subset_rows_of(loader(theirs)))

    assert items(clone) == list(theirs)
    assert items(made) == [int(one) for one in own]


def test_who_has_a_mark_only_cannot_give_the_rows() -> None:
    clone = clone_for(loader(range(9)), RankPair(0, 1))

    with pytest.raises(NotReplayable, match="more than 2048"):
        apply_rows(clone, ("9 rows, 0",))


def test_a_data_set_cut_otherwise_is_not_given() -> None:
    clone = clone_for(DataLoader(DATA), RankPair(0, 1))

    with pytest.raises(NotReplayable, match="in another way"):
        apply_rows(clone, (range(9),))


def test_an_origin_travels_whole() -> None:
    made = loader([3, 1, 2], shuffle=True, generator=torch.Generator().manual_seed(3))
    sent = origin(made)

    assert Origin.unpack(sent.pack()) == sent
    assert sent.rows == 3
    assert (
        Origin.unpack(Origin(streams=None, generators=None, subset_rows=None).pack()).subset_rows
        is None
    )


@pytest.mark.parametrize(
    "place_and_value", [(1, ["x"]), (2, [[1, 2]]), (2, [b"123"]), (2, "x"), (3, None)]
)
def test_what_is_no_origin_is_a_value_error(place_and_value: tuple[int, Any]) -> None:
    packed = origin(loader(range(3))).pack()
    packed[place_and_value[0]] = place_and_value[1]

    with pytest.raises(ValueError):
        Origin.unpack(packed)


# --------------------------------------------------------------------------- after a loss


def pass_over(made: "DataLoader[Any]") -> None:
    list(made)


def two_ranks(
    rows: tuple[Any, Any] = (range(40), range(40)), seeds: tuple[int, int] = (1, 2)
) -> Any:
    """Loaders of a lost rank and of ours, and what we know of it after one iterator."""
    both = [
        loader(one, shuffle=True, generator=torch.Generator().manual_seed(seed))
        for one, seed in zip(rows, seeds, strict=True)
    ]
    pairs = OriginPairs()
    pairs.learn({4: origin(both[0])}, {4: origin(both[1])})
    return *both, pairs


def test_a_generator_has_moved_on_as_far_as_ours() -> None:
    theirs, mine, pairs = two_ranks()
    pass_over(theirs)
    pass_over(mine)

    assert pairs.derive(origin(mine), None).generators == origin(theirs).generators


def test_ranks_with_unequally_many_rows_do_not_tell_of_each_other() -> None:
    theirs, mine, pairs = two_ranks((range(39), range(40)))
    pass_over(theirs)
    pass_over(mine)

    told = pairs.derive(origin(mine), None)

    assert told.generators is None
    assert told.subset_rows == (range(39),)
    with pytest.raises(NotReplayable, match="where the loader's own generator stands"):
        told.require_generators()


def test_a_generator_seeded_anew_is_told_only_if_it_never_differed() -> None:
    for seeds, known in (((1, 2), False), ((5, 5), True)):
        _, mine, pairs = two_ranks(seeds=seeds)
        mine.generator.manual_seed(9)

        told = pairs.derive(origin(mine), None).generators

        assert told == (origin(mine).generators if known else None)


def test_a_new_loader_over_the_same_rows_has_those_of_the_one_before() -> None:
    _, _, pairs = two_ranks((range(0, 90, 3), range(1, 90, 3)))

    assert pairs.derive(origin(loader(list(range(1, 90, 3)))), None).subset_rows == (
        range(0, 90, 3),
    )


def test_rows_never_seen_are_told_only_if_ranks_never_differed() -> None:
    for rows, known in (((range(9), range(1, 9)), False), ((range(9), range(9)), True)):
        _, _, pairs = two_ranks(rows)

        told = pairs.derive(origin(loader(range(50))), None)

        assert told.subset_rows == ((range(50),) if known else None)
        if not known:
            with pytest.raises(NotReplayable, match="the rows of the data set"):
                told.apply_rows(loader(range(50)))


def test_rows_that_were_two_things_there_are_not_told() -> None:
    _, _, pairs = two_ranks((range(0, 90, 3), range(1, 90, 3)))
    pairs.learn({5: origin(loader(range(7)))}, {5: origin(loader(range(1, 90, 3)))})

    assert pairs.derive(origin(loader(range(1, 90, 3))), None).subset_rows is None


def test_the_rows_of_a_sampler_are_told() -> None:
    made = [DataLoader(DATA, 2, sampler=SubsetRandomSampler(range(n, 100, 3))) for n in (0, 1)]
    clone = clone_for(made[1], RankPair(1, 0))

    Origin.of(made[0], None, ()).apply_rows(clone)

    assert sorted(items(clone)) == list(range(0, 100, 3))


def test_generators_are_moved_one_by_one() -> None:
    own, other = torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)
    start = [tensor_bytes(one.get_state()) for one in (own, other)]
    torch.rand(700, generator=own)
    torch.rand(700, generator=other)
    end = [tensor_bytes(one.get_state()) for one in (own, other)]

    assert advanced_generators((start[1], start[0]), (start[0], start[0]), (end[0], start[0])) == (
        end[1],
        start[0],
    )
    assert advanced_generators((start[1],), (start[0], start[0]), (end[0], start[0])) is None


def test_a_sampler_over_the_data_set_counts_the_rows_of_the_other_rank() -> None:
    data = Subset(DATA, range(0, 100, 3))
    clone = clone_for(DataLoader(data, 2, sampler=RandomSampler(data)), RankPair(0, 1))

    apply_rows(clone, (range(1, 21),))

    assert sorted(items(clone)) == list(range(1, 21))


def striding(place: int, count: int = 4) -> "DataLoader[Any]":
    return DataLoader(DATA, 2, sampler=DistributedSampler(DATA, count, place, shuffle=False))


def test_a_sampler_is_given_the_place_that_the_rank_told() -> None:
    """Eight ranks, of which pairs read the same: neither rank nor replica is what it carries."""
    theirs, own = origin(striding(1)), origin(striding(2))
    told = Origin.unpack(theirs.pack()).places_for(own)

    clone = clone_for(striding(2), RankPair(own=5, other=3, known=told))

    assert items(clone) == items(striding(1))


def test_a_loader_made_after_the_loss_carries_what_those_before_it_did() -> None:
    pairs = OriginPairs()
    pairs.learn({1: origin(striding(1))}, {1: origin(striding(2))})

    later = pairs.derive(origin(striding(2)), None)
    other = pairs.derive(origin(striding(2, count=5)), None)

    assert later.rank_places == ((4, 1),)
    assert other.rank_places is None and other.places_for(origin(striding(2, count=5))) == {}


def test_a_sampler_that_is_given_the_ranks_attributes_as_it_is_executed_carries_its_place() -> None:
    pairs = OriginPairs()
    pairs.learn({1: origin(striding(1))}, {1: origin(striding(2))})

    executed = pairs.derive(origin(striding(1)), None, acting=True)

    assert executed.rank_places == ((4, 1),)
    executed.require_rank_places(origin(striding(1)), 2)
    assert pairs.derive(origin(striding(3)), None, acting=True).rank_places is None


def test_a_sampler_that_stands_for_the_rank_that_is_executed_is_known_without_one_before() -> None:
    first = OriginPairs().derive(origin(striding(1)), None, acting=True)

    assert first.rank_places is None
    first.require_rank_places(origin(striding(1)), 2, 1)
    with pytest.raises(NotReplayable, match="for which rank its sampler stands"):
        first.require_rank_places(origin(striding(1)), 2)


def test_where_samplers_go_round_among_ranks_nobody_knows_what_a_lost_ranks_carries() -> None:
    pairs = OriginPairs()
    pairs.learn({1: origin(striding(1))}, {1: origin(striding(2))})

    ours = origin(striding(1))  # we carry now what that rank has carried

    assert pairs.derive(ours, None).rank_places is None
    with pytest.raises(NotReplayable, match="for which rank its sampler stands"):
        pairs.derive(ours, None).require_rank_places(ours, 2)


@pytest.mark.parametrize("wrong", [7, [[1]], [[1, "2"]], [[True, 1]]])
def test_places_that_are_none_are_not_taken(wrong: Any) -> None:
    packed = [*origin(striding(1)).pack()[:-1], wrong]

    with pytest.raises(ValueError, match="no places"):
        Origin.unpack(packed)


@pytest.mark.parametrize(
    ("count", "stands_for", "told"),
    [
        (3, 0, True),  # for us: another rank's stands for that one
        (1, 2, True),  # for all
        (3, 2, False),
    ],
)
def test_a_sampler_that_stands_for_another_rank_by_now_tells_nothing_of_a_lost_one(
    count: int, stands_for: int, told: bool
) -> None:
    sampler = DistributedSampler(DATA, 4, stands_for if count > 1 else 0)
    own = origin(DataLoader(DATA, 2, sampler=sampler))
    own = replace(own, rank_places=((count, stands_for),))
    unknown = OriginPairs().derive(own, None)

    assert unknown.rank_places is None
    if told:
        unknown.require_rank_places(own, 0)
    else:
        with pytest.raises(NotReplayable, match="for which rank its sampler stands"):
            unknown.require_rank_places(own, 0)
    replace(unknown, rank_places=((count, 1),)).require_rank_places(own, 0)
