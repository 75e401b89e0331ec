"""What is said of a lost rank that can no longer be followed: what parted, and nothing else."""

import re

import pytest

from recoverrun.hooks.data import NotReplayable
from recoverrun.hooks.heritage import Heritage
from tests.unit.test_crossing import at


def test_only_what_parted_between_two_steps_is_named() -> None:
    tops = [at(0, "top", seed=1, batch=3, seen=4), at(1, "top", seed=2, batch=5, seen=8)]
    heir = Heritage(rank=1, theirs=at(1, "top", seed=7, batch=6, seen=8), mine=tops[1])
    heir.part(tops, lambda key, value: True, lambda key: True)
    moving = {key[-1]: value for key, value in heir.moving.items()}
    assert moving == {"seed": 7, "batch": 6, "seen": 8}
    heir.end_step()
    ahead, top = at(2, "ahead", seed=2, batch=5, seen=8), at(2, "top", seed=3, batch=5, seen=8)

    why = "meter.seed differs between ranks and moves between steps"
    with pytest.raises(NotReplayable, match=f"^{re.escape(why)}$"):
        heir.follow(ahead, top)


def test_a_chain_goes_back_to_what_another_survivor_computed_and_was_lost_with() -> None:
    """Two losses in one step: what the first survivor has passed already, it must do after all."""
    tops = [at(0, "top", batch=3), at(1, "top", batch=5)]
    heir = Heritage(rank=1, theirs=at(1, "top", batch=6), mine=tops[1])
    heir.part(tops, lambda key, value: True, lambda key: True)
    (key,) = heir.moving
    for index, batch in enumerate((16, 26)):
        assert heir.differing(index) == {key: (6, 16)[index]}
        heir.bulk = {"shard": index}
        heir.advance({}, {key: batch})
    heir.go_back(2)
    assert heir.differing(2) == {key: 26}

    heir.go_back(1)

    assert heir.differing(1) == {key: 16} and heir.bulk == {"shard": 1}
    heir.advance({}, {key: 27})
    heir.go_back(0)
    assert heir.differing(0) == {key: 6}
    heir.end_step()
    assert not heir.past
