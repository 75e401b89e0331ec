"""The scheduling of gloo's event threads, where the system does not list threads."""

from pathlib import Path

import pytest

from ft_collectives.communicators import gloo_threads


def test_a_system_without_proc_leaves_threads_as_they_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(gloo_threads, "TASKS", str(tmp_path / "not mounted"))

    gloo_threads.schedule_as_batch()
