"""The digests of ranks in each vote, and what ranks make of them."""

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgpack
import pytest
import torch

from ft_collectives.communicators.errors import Superseded
from ft_collectives.step.vote import Tally
from recoverrun.worker.context.slot_context import Context, host
from recoverrun.worker.replay.lost_rank import LostRank
from recoverrun.worker.rng.streams import Streams, restore_streams
from recoverrun.worker.step.guarantee import Guarantee
from recoverrun.worker.verification import drift_check as alike_module
from recoverrun.worker.verification.drift_check import UNEQUAL, DriftCheck
from tests.unit.contexts import LOOP, at, draw, stream
from tests.unit.workers import protected

pytestmark = pytest.mark.usefixtures("streams_put_back")

SEED = 5
MADE_AT = "train.py:3#0"

Matters = Callable[[Any, Any], bool]


class Rank:
    """As much of a session as a comparison needs."""

    def __init__(self, number: int, ranks: "Ranks", matters: Matters) -> None:
        self.renewed = 0
        self.downgrades: list[str] = []
        reporter: Any = SimpleNamespace(downgraded=self.downgrades.append)
        self.guarantee = Guarantee(reporter, lambda: 1)
        self.guarantee.promise = "exact-samples"
        self.env = SimpleNamespace(rank=number, exact=False, error_file="")
        self.joined: tuple[int, ...] = ()
        self.lost, self.step = False, 5
        self.params = [torch.zeros(40), torch.zeros(3, 3)]
        view = SimpleNamespace(generation=1)
        self.fabric = SimpleNamespace(ranks=ranks, number=number, view=view)
        self.vote_group = SimpleNamespace(channel=None)
        self.captures: Any = SimpleNamespace(points=list[Context]())
        self.alike = DriftCheck(protected(self), self.captures, matters)

    def committed(self) -> None:
        self.renewed += self.alike.committed()

    def goes(self, top: Context, *, before: Context | None = None, draws: int = 0) -> None:
        """From where the transaction before ended to `top`; its microbatch draws so many."""
        began = at(3, 0, "after", streams=rested()) if before is None else before
        self.alike.look(began, top, self.params)
        restore_streams(top.streams)
        draw(draws)
        self.captures.points[:] = [began, top, at(4, 0, "after", generators=top.generators)]

    @property
    def lost_rank(self) -> LostRank:
        """One that had x, y and z otherwise than this rank."""
        parted = frozenset[Any]("xyz")
        return self.alike.informs(LostRank(9, apart=False, parted=parted))


class Ranks:
    """Two, who say what they have to say, and then hear each other."""

    def __init__(self, matters: Matters = lambda key, value: True) -> None:
        self.ranks = [Rank(number, self, matters) for number in range(2)]
        self.words: dict[int, Any] = {}
        self.votes: list[bool] = []  # were all words the same
        self.superseded = False

    def go(self, *tops: Context, **more: Any) -> None:
        for rank, top in zip(self.ranks, tops, strict=True):
            rank.goes(top, **more)

    def vote(self) -> None:
        together = len({rank.alike.word for rank in self.ranks}) == 1
        self.votes.append(together)
        for rank in self.ranks:
            rank.alike.hear(Tally(counts=(), said=(), alike=together))
        self.words.clear()
        for rank in self.ranks * (not together):
            with pytest.raises(_NotAll):
                rank.alike._compare()
        for rank in self.ranks:
            rank.committed()

    def gather(self, number: int, mine: Any) -> dict[int, Any]:
        if self.superseded:
            raise Superseded
        if number not in self.words:
            self.words[number] = msgpack.unpackb(msgpack.packb(mine))
            raise _NotAll
        return dict(sorted(self.words.items()))


class _NotAll(Exception):
    """Not all have said their words yet."""


@pytest.fixture(autouse=True)
def _gather(monkeypatch: pytest.MonkeyPatch) -> None:
    def gather(fabric: Any, channel: Any, generation: int, mine: Any) -> Any:
        ranks, number = fabric.ranks, fabric.number
        return ranks.gather(number, mine)

    monkeypatch.setattr(alike_module, "gather", gather)


def rested() -> Streams:
    return stream(SEED, 0)


def top(drawn: int = 0, **names: Any) -> Context:
    """Of the next transaction, so many numbers later."""
    return at(4, streams=stream(SEED, drawn), names=names)


# --------------------------------------------------------------------------- values


def test_ranks_that_go_on_alike_have_one_word() -> None:
    ranks = Ranks()
    ranks.go(top(3, x=1, seen=[1, 2]), top(3, seen=[1, 2], x=1))

    ranks.vote()

    assert ranks.votes == [True] and ranks.ranks[0].alike.apart == set()


@pytest.mark.parametrize(
    ("drawn", "names"),
    [(3, {"x": 2}), (3, {"x": 1.0}), (3, {"x": True}), (3, {"y": 1}), (3, {}), (4, {"x": 1}),
     (0, {"x": 1})],
)  # fmt: skip
def test_ranks_that_go_on_otherwise_have_other_words(drawn: int, names: dict[str, Any]) -> None:
    one, other = Ranks().ranks
    one.goes(top(3, x=1))
    other.goes(top(drawn, **names))

    assert one.alike.word != other.alike.word


def test_what_was_common_and_moves_otherwise_is_apart_from_then_on_and_said_once() -> None:
    ranks = Ranks()
    ranks.go(top(lr=1, x=1), top(lr=1, x=1))
    ranks.vote()
    for value in (2, 3):
        ranks.go(top(lr=2, x=value), top(lr=2, x=7 * value))
        ranks.vote()

    assert ranks.votes == [True, False, True]
    for rank in ranks.ranks:
        assert rank.alike.apart == {"x"} == rank.lost_rank.alone
        assert (rank.renewed, rank.guarantee.promise) == (1, "exact-samples")


def test_what_only_some_ranks_have_is_apart() -> None:
    ranks = Ranks()
    ranks.go(top(x=1, y=1), top(x=1))

    ranks.vote()

    assert [rank.alike.apart for rank in ranks.ranks] == [{"y"}, {"y"}]


def test_attributes_are_apart_by_their_paths() -> None:
    ranks = Ranks()
    path = ("loader", "place")
    ranks.go(*(at(4, streams=rested(), attributes={path: place}) for place in (1, 2)))

    ranks.vote()

    assert ranks.ranks[1].alike.apart == {path}


@pytest.mark.parametrize("name", ["data#", "local_rank", "gpu", "clock"])
def test_marks_and_what_is_the_process_s_own_and_what_does_not_matter_are_not_compared(
    name: str,
) -> None:
    ranks = Ranks(lambda key, value: key != "clock")
    ranks.go(top(**{name: 1}), top(**{name: 2}))

    ranks.vote()

    assert ranks.votes == [True]


def test_streams_of_which_nobody_counts_the_numbers_are_values_that_matter() -> None:
    ranks = Ranks(lambda key, value: False)
    before = at(3, 0, "after", streams=rested())
    ranks.ranks[0].goes(top(), before=before)
    random.random()
    ranks.ranks[1].goes(top(), before=before)

    ranks.vote()

    assert ranks.ranks[0].alike.apart == {host("python")}


def test_a_loss_while_ranks_tell_each_other_changes_nothing() -> None:
    ranks = Ranks()
    ranks.go(top(x=1), top(x=2))
    for rank in ranks.ranks:
        rank.alike.hear(Tally(counts=(), said=(), alike=False))
    ranks.superseded = True

    for rank in ranks.ranks:
        rank.committed()

    assert [rank.alike.apart for rank in ranks.ranks] == [set(), set()]


def test_who_has_lost_somebody_compares_nothing() -> None:
    (rank, _) = Ranks().ranks
    rank.goes(top(x=1))
    rank.alike.hear(Tally(counts=(), said=(), alike=False))
    rank.lost = True

    rank.committed()  # or it would ask

    assert rank.alike.apart == set() and rank.alike.word == 0


# --------------------------------------------------------------------------- random numbers


def test_unequal_draws_lower_the_promise_if_microbatches_draw_and_all_say_why() -> None:
    ranks = Ranks()
    ranks.go(top(3), top(8), draws=2)

    ranks.vote()

    one, other = ranks.ranks
    words = UNEQUAL.format(loop=LOOP, stream="torch", counts="3 on rank 0, 8 on rank 1")
    assert (one.downgrades, other.downgrades) == ([words], [words])
    assert one.guarantee.promise == other.guarantee.promise == "equal-count"


@pytest.mark.parametrize("drawing", [0, 1])
def test_all_ranks_lower_the_promise_if_the_microbatch_of_one_of_them_draws(drawing: int) -> None:
    ranks = Ranks()
    for number, drawn in enumerate((3, 8)):
        ranks.ranks[number].goes(top(drawn), draws=2 * (number == drawing))

    ranks.vote()

    assert [rank.guarantee.promise for rank in ranks.ranks] == ["equal-count"] * 2
    assert [len(rank.downgrades) for rank in ranks.ranks] == [1, 1]


def test_unequal_draws_cost_nothing_if_microbatches_draw_none_and_are_told_once() -> None:
    ranks = Ranks()
    ranks.go(top(3), top(8))
    ranks.vote()
    ranks.go(top(4), top(9))
    ranks.vote()

    assert ranks.votes == [False, True]
    for rank in ranks.ranks:
        assert rank.guarantee.promise == "exact-samples" and rank.renewed == 0
        assert rank.lost_rank.unequal == {"torch"}


def test_unequal_draws_are_refused_to_who_asked_for_exact_sums(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ranks = Ranks()
    for rank in ranks.ranks:
        rank.env.exact = True
    ranks.go(top(3), top(0), draws=1)

    with pytest.raises(SystemExit):
        ranks.vote()

    assert "3 on rank 0, 0 on rank 1" in capsys.readouterr().err


def test_what_a_rank_draws_alone_does_not_count() -> None:
    ranks = Ranks()
    drawn = stream(SEED, 8)
    alone = drawn.with_private([5, *[0] * len(drawn.torch_cuda)])
    ranks.go(top(3), at(4, streams=alone), draws=2)

    ranks.vote()

    assert ranks.votes == [True]


def test_who_seeds_anew_is_not_alike_and_so_is_nobody_who_draws() -> None:
    ranks = Ranks()
    ranks.go(top(3), at(4, streams=stream(SEED + 1, 3)), draws=2)

    ranks.vote()

    assert "3 on rank 0, -1 on rank 1" in ranks.ranks[0].downgrades[0]


@pytest.mark.parametrize("draws", [0, 2])
def test_generators_of_torch_are_counted_each_for_itself(draws: int) -> None:
    ranks, made = Ranks(), torch.Generator().manual_seed(6)
    states = [made.get_state()]
    for count in (3, 1, draws):
        torch.empty(count, dtype=torch.int32).random_(generator=made)
        states.append(made.get_state())
    began = at(3, 0, "after", streams=rested(), generators={MADE_AT: states[0]})
    for rank, state in zip(ranks.ranks, states[1:3], strict=True):
        rank.goes(at(4, streams=rested(), generators={MADE_AT: state}), before=began)
        rank.captures.points[-1].generators = {MADE_AT: states[3] if draws else state}

    ranks.vote()

    assert ranks.ranks[1].lost_rank.unequal == {MADE_AT}
    words = f"of the generator made at {MADE_AT} between one step and the next (3 on rank 0"
    assert [words in said for said in ranks.ranks[0].downgrades] == [True] * bool(draws)


def test_one_rank_is_named_for_each_count() -> None:
    counts = {0: 3, 1: 3, 2: 4, 3: 3, 4: 5, 5: 6, 6: 7}

    assert alike_module._few(counts) == [(0, 3), (2, 4), (4, 5), (5, 6)]


def test_what_was_alike_in_the_last_vote_and_has_parted_since_is_restless() -> None:
    ranks = Ranks()
    assert ranks.ranks[0].lost_rank.restless == frozenset()

    ranks.go(top(x=1, y=1, z=3), top(x=1, y=2, z=3))
    ranks.vote()

    assert ranks.ranks[0].lost_rank.restless == {"x", "z"}
    assert ranks.ranks[0].lost_rank.alone == {"y"}


def test_where_somebody_was_lost_before_the_words_were_compared_nothing_is_restless() -> None:
    ranks = Ranks()
    ranks.go(top(x=1, rank=0), top(x=1, rank=1))
    for rank in ranks.ranks:
        rank.lost = True
    ranks.vote()

    assert ranks.ranks[0].lost_rank.restless == frozenset()


def test_what_was_alike_stays_so_once_somebody_is_lost() -> None:
    ranks = Ranks()
    ranks.go(top(x=1), top(x=1))
    ranks.vote()
    before = ranks.ranks[0].lost_rank.restless

    for rank in ranks.ranks:
        rank.lost = True
    ranks.vote()

    assert before == ranks.ranks[0].lost_rank.restless and "x" in before


# --------------------------------------------------------------------------- parameters


@pytest.mark.parametrize("place", [0, 1])
def test_replicas_with_other_parameters_take_the_promise_back_once(place: int) -> None:
    ranks = Ranks()
    ranks.go(at(4), at(4))
    ranks.vote()
    with torch.no_grad():
        ranks.ranks[1].params[place].add_(1e-7)
    for step in (5, 6):
        ranks.go(at(step), at(step))
        ranks.vote()

    assert ranks.votes == [True, False, True]
    assert [rank.guarantee.promise for rank in ranks.ranks] == ["equal-count"] * 2
    said = "replicas began step 4 with different parameters: a lost one's are gone with it"
    assert [rank.downgrades for rank in ranks.ranks] == [[said], [said]]
    assert [rank.renewed for rank in ranks.ranks] == [0, 0], "no value of the script's differs"


def test_who_begins_an_iteration_alone_is_told_so_and_nothing_of_parameters() -> None:
    ranks = Ranks()
    ranks.ranks[1].goes(top(4), draws=2)
    ranks.vote()

    assert "rank 1 began an iteration with step 4, rank 0" in ranks.ranks[0].downgrades[0]


def test_what_all_have_begun_with_can_be_told_to_one_that_comes_later() -> None:
    here, there = Ranks().ranks
    zero = at(3, 0, names={"total": torch.zeros(()), "count": 0})  # a sum of losses, say
    here.alike.learn([[zero.pack()], [zero.pack()]])

    there.alike.learn_all(msgpack.unpackb(msgpack.packb(here.alike.learned())))

    began = there.lost_rank.nothings
    assert torch.equal(began["total"], torch.zeros(())) and began["count"] == 0
