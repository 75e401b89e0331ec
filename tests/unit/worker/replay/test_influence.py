"""Data that each iteration of a loop makes anew, and that a loop in it reads."""

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
import torch
from torch.utils.data import BatchSampler, DistributedSampler

from recoverrun.worker.analysis.program_slice import SliceNames, Texts
from recoverrun.worker.context.slot_context import Context
from recoverrun.worker.replay.influence import Influence
from tests.unit.contexts import at, loop

if TYPE_CHECKING:
    from recoverrun.worker.tracking.microbatches import Top

NONE: frozenset[str] = frozenset()
EPOCHS = loop("train.py:3", assigned=frozenset({"mine", "order"}), live_in=frozenset({"rank"}))
BATCHES = loop("train.py:6")


def influence(*read: str) -> Influence:
    """Of a script whose inner loop reads these variables."""
    made = Influence(SimpleNamespace(own_modules=NONE))
    made._reads[BATCHES.id] = NONE, SliceNames(frozenset(read), NONE, NONE, NONE, NONE)
    return made


def ranks(**by_name: list[Any]) -> list[Context]:
    """The context of each rank, which has its own of these values."""
    several = zip(*by_name.values(), strict=True)
    return [at(0, names=dict(zip(by_name, values, strict=True))) for values in several]


SHARES = [torch.tensor([0, 2]), torch.tensor([1, 3])]


@pytest.mark.parametrize("share", [SHARES, [[0, 2], [1, 3]], [(0, 2), (1, 3)]])
def test_a_share_that_is_cut_out_in_each_epoch_is_made_anew(share: list[Any]) -> None:
    within = ranks(mine=share, rank=[0, 1])

    assert influence("mine").renews(EPOCHS, ranks(rank=[0, 1]), BATCHES, within)


def test_a_share_too_large_to_be_told_is_so_by_its_mark() -> None:
    within = ranks(**{"mine#": ["list 500 aa", "list 500 bb"]})

    assert influence("mine").renews(EPOCHS, ranks(rank=[0, 1]), BATCHES, within)


def test_a_share_that_was_cut_out_before_all_epochs_is_not() -> None:
    outer = loop("train.py:3", assigned=frozenset({"order"}))

    assert not influence("mine").renews(outer, ranks(mine=SHARES), BATCHES, ranks(mine=SHARES))


def test_data_that_no_microbatch_reads_do_not_count() -> None:
    assert not influence("rows").renews(EPOCHS, ranks(rank=[0, 1]), BATCHES, ranks(mine=SHARES))


def test_a_number_is_taken_for_a_constant_of_the_rank() -> None:
    assert not influence("mine").renews(EPOCHS, ranks(rank=[0, 1]), BATCHES, ranks(mine=[0, 8]))


def test_what_ranks_have_in_common_needs_no_epoch() -> None:
    within = ranks(mine=[SHARES[0], SHARES[0]])

    assert not influence("mine").renews(EPOCHS, ranks(rank=[0, 1]), BATCHES, within)


@pytest.mark.parametrize(("around", "renewed"), [({"rank": [0, 1]}, True), ({"x": SHARES}, False)])
def test_a_function_makes_anew_what_it_was_not_given(
    around: dict[str, list[Any]], renewed: bool
) -> None:
    outer = loop("train.py:3", qualname="fit")

    assert influence("mine").renews(outer, ranks(**around), BATCHES, ranks(mine=SHARES)) is renewed


def test_a_rank_that_left_no_context_of_the_outer_loop_decides_nothing() -> None:
    within = ranks(mine=SHARES)

    assert not influence("mine").renews(EPOCHS, ranks(rank=[0]), BATCHES, within)


@pytest.mark.parametrize(
    ("around", "within", "renewed"),
    [
        ({}, [b"one", b"two"], True),
        ({}, [b"one", b"one"], False),  # seeded alike
        ({"train.py:4#1": b"old"}, [b"one", b"two"], False),  # made before the epoch
    ],
)
def test_a_generator_that_each_epoch_makes_is_made_anew(
    around: dict[str, bytes], within: list[bytes], renewed: bool
) -> None:
    key = "train.py:4#1"
    outer = [at(0, generators=around)] * 2
    inner = [at(0, generators={key: state}) for state in within]

    assert influence().renews(EPOCHS, outer, BATCHES, inner, [key]) is renewed
    assert not influence().renews(EPOCHS, outer, BATCHES, inner)  # microbatches draw nothing of it


# --------------------------------------------------------------------------- samplers


def test_the_rank_of_a_sampler_matters_to_those_who_read_the_sampler() -> None:
    sampler = DistributedSampler(range(6), num_replicas=2, rank=1)
    batches = BatchSampler(sampler, 2, drop_last=True)
    trainer = SimpleNamespace(sampler=sampler, epoch=0)
    held = {"rows": sampler, "batches": batches, "trainer": trainer}
    found = influence("rows", "batches", "trainer")
    found.top = cast("Top", SimpleNamespace(loop=BATCHES, globals=held, names={}))

    assert found.matters(("rows", "rank"), 1)
    assert found.matters(("batches", "sampler", "rank"), 1)
    assert not found.matters(("trainer", "sampler", "rank"), 1)  # it reads no attribute called so
    assert not found.matters(("trainer", "epoch"), 0)


# --------------------------------------------------------------------------- own results


def test_an_entry_of_a_dict_is_asked_for_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """The text is that of no module here."""
    text = b"level = state['mean']\nstate['turn'] += 1\nkept.level = state['mean']"
    monkeypatch.setattr(Texts, "load", lambda texts, _: texts.sources.update({"train.py": text}))
    found, differing = influence(), {("state", "['mean']")}

    assert found.own_results(differing, "level")
    assert found.own_results(differing, ("trainer", "kept", "level"))
    assert not found.own_results(differing, ("state", "['turn']"))
