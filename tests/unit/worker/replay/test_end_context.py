"""The context of a rank, taken at the end of a microbatch that is executed as it."""

from typing import Any

import pytest

from recoverrun.worker.replay.end_context import EndContext


def test_it_is_taken_as_the_backward_returns_and_not_on_the_way_out() -> None:
    names, end = {"count": 1}, EndContext()
    copied: Any = dict
    end.begins(True, copied)
    end.local = names

    end.reach()
    names["count"] = 2
    end.reach()

    assert end.reached
    assert end.taken == {"count": 1}


def test_one_that_is_not_wanted_is_not_taken() -> None:
    end = EndContext()
    end.begins(True, pytest.fail)
    end.begins(False, pytest.fail)

    end.reach()

    assert end.reached and end.taken is None
