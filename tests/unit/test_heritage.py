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
