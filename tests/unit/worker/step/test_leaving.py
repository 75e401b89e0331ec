"""The last words of a process that cannot take a lost rank's place."""

import os
from types import SimpleNamespace
from typing import Any

import pytest

from recoverrun.worker.step.leaving import leave
from rendezvous.protocol.arrival_messages import REFUSE_RETURN
from rendezvous.protocol.exit_codes import ExitCode


@pytest.mark.parametrize(
    ("again", "said"),
    [
        # Who reads a notice is shown the rank that gave it.
        (True, ("this process does not take part: the donor is gone",)),
        (False, ("a lost replica does not come back: the donor is gone", REFUSE_RETURN)),
    ],
)
def test_a_process_that_leaves_says_why(
    again: bool, said: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    notices: list[tuple[str, ...]] = []
    worker: Any = SimpleNamespace(
        env=SimpleNamespace(rank=1),
        reporter=SimpleNamespace(notice=lambda *words: notices.append(words)),
        link=SimpleNamespace(close=lambda: None),
    )

    def ends(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(os, "_exit", ends)
    with pytest.raises(SystemExit) as ended:
        leave(worker, "the donor is gone", again=again)

    assert ended.value.code == ExitCode.AWAY
    assert notices == [said]
