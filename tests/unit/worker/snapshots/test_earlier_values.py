"""Queues and files of a script are watched where its snapshots may be taken, and not otherwise."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from recoverrun.worker.snapshots import earlier_values
from recoverrun.worker.snapshots.earlier_values import EarlierValues
from rendezvous.protocol.worker_env import UNASKED


@pytest.mark.parametrize(
    ("every", "transacts", "watches"),
    [(UNASKED, True, 0), (UNASKED, False, 1), ("auto", True, 1), ("9", False, 1)],
)
def test_what_costs_a_little_is_left_where_steps_may_outlive_a_loss(
    every: str, transacts: bool, watches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    queues = SimpleNamespace(watch=lambda: told.append("queues"))
    monkeypatch.setattr(earlier_values, "QUEUES", queues)
    env = SimpleNamespace(snapshot_every=every)
    worker = SimpleNamespace(env=env, transacts=transacts, runtime=None)
    outer = SimpleNamespace(step_begins=lambda stack: None)
    values = EarlierValues(
        cast("Any", SimpleNamespace(worker=worker)), cast("Any", None), cast("Any", outer)
    )
    monkeypatch.setattr(values.files, "watch", lambda: told.append("files"))

    values.step_begins([])

    assert told == ["queues", "files"] * watches
