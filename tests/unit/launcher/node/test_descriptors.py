"""The descriptors that a launcher and its workers open, against the limits that they have."""

import resource

import pytest

from recoverrun.errors import RecoverrunError
from recoverrun.launcher.node.descriptors import check_limits

FREE = resource.RLIM_INFINITY


@pytest.mark.parametrize(("workers", "least"), [(1, 27), (2, 32), (4, 42)])
@pytest.mark.parametrize("nodes", [1, 3])
def test_only_a_limit_at_which_no_launcher_can_work_is_refused(
    workers: int, least: int, nodes: int
) -> None:
    check_limits((least, least), workers, nodes)

    with pytest.raises(RecoverrunError, match=f"opens {least} descriptors .* is {least - 1} "):
        check_limits((least - 1, least - 1), workers, nodes)


def test_a_limit_that_other_launchers_may_reach_is_told() -> None:
    (warning,) = check_limits((FREE, 42), 1, 3)

    assert "a launcher among 3 nodes opens 43 descriptors, and the limit is 42 " in warning
    assert check_limits((FREE, 43), 1, 3) == check_limits((FREE, 33), 1, 1) == ()


def test_a_limit_that_collectives_may_reach_is_told_and_not_refused() -> None:
    (warning,) = check_limits((36, FREE), 1, 2)

    assert "among 2 ranks opens 37 descriptors" in warning and "the limit is 36 " in warning
    assert check_limits((37, 37), 1, 2) == check_limits((29, 29), 1, 1) == ()
    assert check_limits((FREE, FREE), 8, 1000) == ()
