"""The descriptors that a launcher and its workers open, against the limit that they have."""

import resource

import pytest

from recoverrun.errors import RecoverrunError
from recoverrun.launcher.node.descriptors import check_limit


@pytest.mark.parametrize(("workers", "least"), [(1, 27), (2, 32), (4, 42)])
def test_only_a_limit_at_which_no_launcher_can_work_is_refused(workers: int, least: int) -> None:
    check_limit(least, workers, workers)

    with pytest.raises(RecoverrunError, match=f"opens {least} descriptors .* is {least - 1} "):
        check_limit(least - 1, workers, workers)


def test_a_limit_that_collectives_may_reach_is_told_and_not_refused() -> None:
    (warning,) = check_limit(36, 1, 2)

    assert "among 2 ranks opens 37 descriptors" in warning
    assert check_limit(37, 1, 2) == check_limit(29, 1, 1) == ()
    assert check_limit(resource.RLIM_INFINITY, 1000, 8000) == ()
