"""Waiting for a module that the script may import later, or may only ask for."""

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from recoverrun.hooks import patches


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "rr_watched", raising=False)
    (tmp_path / "rr_watched.py").write_text("answer = 42\n")
    importlib.invalidate_caches()


def test_the_watcher_is_told_once_the_module_has_been_executed() -> None:
    arrived: list[ModuleType] = []
    patches.watch("rr_watched", arrived.append)
    assert not arrived

    made = importlib.import_module("rr_watched")

    assert arrived == [made] and made.answer == 42


def test_to_ask_whether_a_module_is_installed_is_not_to_import_it() -> None:
    arrived: list[ModuleType] = []
    patches.watch("rr_watched", arrived.append)

    assert importlib.util.find_spec("rr_watched") is not None
    made = importlib.import_module("rr_watched")

    assert arrived == [made]
    assert not any(isinstance(one, patches._Watch) for one in sys.meta_path)
