"""The reasons for which `--exact` ends a run, and those for which it does not."""

from types import SimpleNamespace
from typing import Any

import pytest

from recoverrun.worker.step.exact_mode import end_if_unserved, gives_way
from rendezvous.protocol.exit_codes import ExitCode


def worker(*, exact: bool, joined: tuple[int, ...]) -> Any:
    return SimpleNamespace(env=SimpleNamespace(exact=exact, error_file=""), joined=joined)


def test_a_run_of_which_exact_sums_were_asked_ends_where_they_cannot_be_given() -> None:
    with pytest.raises(SystemExit) as ended:
        end_if_unserved(
            worker(exact=True, joined=()), "equal-count", "its loop draws from the kernel"
        )

    assert ended.value.code == ExitCode.USAGE


@pytest.mark.parametrize("promise", ["exact-samples", "unprotected"])
def test_what_does_not_make_up_with_other_samples_ends_nothing(promise: Any) -> None:
    end_if_unserved(worker(exact=True, joined=()), promise, "")


@pytest.mark.parametrize("exact", [False, True])
def test_once_a_replica_has_come_back_no_proof_ends_the_run(exact: bool) -> None:
    one = worker(exact=exact, joined=(1,))

    end_if_unserved(one, "equal-count", "its loop draws from the kernel")

    assert gives_way(one) == exact
