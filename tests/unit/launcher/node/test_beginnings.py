"""A worker begins where it finds what it needs."""

from pathlib import Path
from typing import Any

import pytest

from recoverrun.errors import RecoverrunError
from recoverrun.launcher.node.beginnings import Beginnings
from recoverrun.launcher.output import run_dir

NOT_ASKED: Any = None


def test_none_begins_where_shared_memory_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_dir, "SHARED_MEMORY", tmp_path)
    private = run_dir.make_private_dir()
    beginnings = Beginnings(
        config=NOT_ASKED, start=NOT_ASKED, run_dir=tmp_path, private=private, outlets=NOT_ASKED,
        spares=NOT_ASKED, keeper="", inherited={},
    )  # fmt: skip
    monkeypatch.setattr(run_dir, "_room_bytes", lambda _: run_dir.WORKER_BYTES - 1)

    with pytest.raises(RecoverrunError, match=f"^{tmp_path} is full$"):
        beginnings.begin(5, 1)
    private.remove()
