"""Threads of ours are not seen by the script; and all that we start there have such a name."""

import ast
import threading
from pathlib import Path

import pytest

from recoverrun.worker.boot.hidden_threads import OURS, hide_threads

ROOT = Path(__file__).resolve().parents[4]
BESIDE_THE_SCRIPT = ("recoverrun/worker", "ft_collectives")


def test_the_script_sees_its_own_threads_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    own, ours = (threading.Thread(name=name) for name in ("own", f"{OURS}one"))
    monkeypatch.setattr(threading, "enumerate", lambda: [own, ours])
    monkeypatch.setattr(threading, "active_count", lambda: 2)

    hide_threads()

    assert threading.enumerate() == [own]
    assert threading.active_count() == 1


def test_every_thread_beside_the_script_has_a_name_that_hides_it() -> None:
    calls = [
        (path.name, call)
        for folder in BESIDE_THE_SCRIPT
        for path in (ROOT / folder).rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call)
        and ast.unparse(call.func).removeprefix("threading.") in ("Thread", "begin_thread")
    ]
    assert calls
    for file, call in calls:
        named = [one.value for one in call.keywords if one.arg == "name"] or call.args[:1]
        names = [one.value for one in named if isinstance(one, ast.Constant)]
        assert [name for name in names if str(name).startswith(OURS)], f"{file}: {call.lineno}"
