"""The beginning of a transaction, as far as it is verified."""

from types import SimpleNamespace
from typing import Any

import pytest

from recoverrun.worker.verification.verifier import Verification
from tests.unit.contexts import at


@pytest.mark.parametrize(
    ("around", "begins"),
    [((), True), (("top",), True), (("epoch", "top"), True), (("batch",), False)],
)
def test_a_loop_within_a_microbatch_is_no_beginning(around: tuple[str, ...], begins: bool) -> None:
    """Numbers that a forward drew before a loop in it were taken for drawn between two steps."""
    tops: Any = {name: object() for name in ("top", "epoch", "batch")}
    under_way = [SimpleNamespace(top=tops[name]) for name in around]
    worker: Any = SimpleNamespace(runtime=SimpleNamespace(under_way=lambda: under_way))
    begun: list[Any] = []
    drift: Any = SimpleNamespace(begins=begun.append)
    nobody: Any = None

    context = at(3)
    Verification(worker, nobody, drift, nobody).begins(tops["top"], context)

    assert begun == [context] * begins
