"""Ranks tell each other their shares of the data, once."""

from types import SimpleNamespace
from typing import Any

import msgpack
import numpy as np
import pytest
import torch

from recoverrun.worker.errors import NotReplayable
from recoverrun.worker.replay import local_shards
from recoverrun.worker.replay.local_shards import LocalShards, unlike

KEYS = {"x#", "ids", ("trainer", "y#")}


def _visible(rank: int) -> dict[str, Any]:
    return {
        "x": torch.arange(12.0).to(torch.bfloat16)[rank::2],
        "ids": list(range(rank, 12, 2)),
        "trainer": SimpleNamespace(y=np.arange(12.0).reshape(6, 2)[rank::2]),
    }


def _told(rank: int, visible: dict[str, Any]) -> list[Any] | None:
    packed = msgpack.packb(LocalShards().own(KEYS, visible), use_bin_type=True)
    return msgpack.unpackb(packed, raw=False)  # type: ignore[no-any-return]


def test_what_another_rank_holds() -> None:
    mine, theirs = _visible(0), _visible(1)
    ours = LocalShards()
    said = {0: ours.own(KEYS, mine), 1: _told(1, theirs)}

    assert ours.hear(said, 0)

    found = ours.of(1, mine)
    assert torch.equal(found["x"], theirs["x"]) and found["x"].dtype is torch.bfloat16
    assert found["ids"] == theirs["ids"]
    assert np.array_equal(found["trainer", "y"], theirs["trainer"].y)
    assert ours.of(2, mine) == {}


@pytest.mark.parametrize(
    "change",
    [
        lambda names: names.update(ids=[1, 2, 3]),
        lambda names: names["x"].add_(1),
        lambda names: names.pop("x"),
        lambda names: vars(names["trainer"]).update(y=None),
    ],
)
def test_a_share_that_has_changed_since_is_not_taken(change: Any) -> None:
    mine = _visible(0)
    ours = LocalShards()
    assert ours.hear({0: ours.own(KEYS, mine), 1: _told(1, _visible(1))}, 0)

    change(mine)

    with pytest.raises(NotReplayable, match="between steps"):
        ours.of(1, mine)


@pytest.mark.parametrize("value", [None, object(), [object()], torch.ones(2, requires_grad=True)])
def test_what_does_not_travel(value: Any) -> None:
    assert LocalShards().own(["x"], {"x": value}) is None


def test_there_is_an_end_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = _visible(0)
    monkeypatch.setattr(local_shards, "MOST_HEARD_BYTES", 100)
    ours = LocalShards()

    assert not ours.hear({0: ours.own(KEYS, mine), 1: _told(1, _visible(1))}, 0)
    assert ours.of(1, mine) == {}

    monkeypatch.setattr(local_shards, "MOST_BYTES", 100)
    assert LocalShards().own(KEYS, mine) is None


def test_if_one_rank_cannot_tell_nobody_goes_by_what_the_others_told() -> None:
    mine = _visible(0)
    ours = LocalShards()

    assert not ours.hear({0: ours.own(KEYS, mine), 1: _told(1, _visible(1)), 2: None}, 0)
    assert ours.of(1, mine) == {}


def test_marks_that_differ() -> None:
    mine = {"x#": "1", "y#": "2", "n": 3, ("own", "z#"): "4"}
    theirs = {"x#": "1", "y#": "9", "n": 4, ("own", "z#"): "5"}

    assert unlike(mine, theirs) == {"y#", ("own", "z#")}


def _all_told(rank: int) -> tuple[LocalShards, dict[str, Any]]:
    """Of three ranks, which have told each other."""
    shares, visible = LocalShards(), _visible(rank)
    said = {other: _told(other, _visible(other)) for other in range(3)}
    assert shares.hear({**said, rank: shares.own(KEYS, visible)}, rank)
    return shares, visible


def test_a_process_that_comes_later_knows_the_shares_of_all_others() -> None:
    donor, visible = _all_told(0)
    late, mine = LocalShards(), _visible(1)

    assert late.learn(donor.told(0, visible), 1, mine) == ""

    for rank in (0, 2):
        found, theirs = late.of(rank, mine), _visible(rank)
        assert torch.equal(found["x"], theirs["x"])
        assert found["ids"] == theirs["ids"]
        assert np.array_equal(found["trainer", "y"], theirs["trainer"].y)
    assert late.of(1, mine) == {}
    mine["ids"] = [5]
    with pytest.raises(NotReplayable):
        late.of(0, mine)


def test_a_process_whose_share_is_another_one_says_so() -> None:
    donor, visible = _all_told(0)
    mine = _visible(1)
    mine["trainer"].y[0] = 7.0

    assert LocalShards().learn(donor.told(0, visible), 1, mine) == "trainer.y"


def test_nothing_is_told_where_ranks_have_told_each_other_nothing() -> None:
    late = LocalShards()

    assert late.learn(LocalShards().told(0, {}), 1, {}) == ""
    assert late.empty


def test_a_share_that_has_changed_since_is_not_told() -> None:
    donor, visible = _all_told(0)
    visible["x"].add_(1)

    with pytest.raises(NotReplayable):
        donor.told(0, visible)
