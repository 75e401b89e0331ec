"""Waiting for modules that the script imports: they are handed over whole, or not at all."""

import importlib
import importlib.util
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest

from recoverrun.worker.patches import torch_table
from recoverrun.worker.rewriting.post_import import PostImportHooks

LAZY = """
import importlib
import sys
from types import ModuleType

class Lazy(ModuleType):
    def __getattr__(self, name):
        if name != "Arguments":
            raise AttributeError(name)
        value = getattr(importlib.import_module("rr_lazy.arguments"), name)
        setattr(self, name, value)
        return value

made = Lazy(__name__)
made.__spec__, made.__path__ = __spec__, __path__
sys.modules[__name__] = made
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a test's modules; their names begin with `rr_`."""
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def _write(folder: Path, modules: dict[str, str]) -> None:
    for name, text in modules.items():
        path = folder / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    importlib.invalidate_caches()


def test_the_watcher_is_told_once_the_module_has_been_executed(folder: Path) -> None:
    _write(folder, {"rr_watched": "answer = 42\n"})
    hooks, arrived = PostImportHooks(), list[ModuleType]()
    hooks.when_imported("rr_watched", arrived.append)
    assert not arrived

    made = importlib.import_module("rr_watched")

    assert arrived == [made] and made.answer == 42


def test_a_module_that_is_there_is_handed_over_at_once(folder: Path) -> None:
    _write(folder, {"rr_watched": ""})
    made = importlib.import_module("rr_watched")
    hooks, arrived = PostImportHooks(), list[ModuleType]()

    hooks.when_imported("rr_watched", arrived.append)

    assert arrived == [made] and hooks not in sys.meta_path


def test_to_ask_whether_a_module_is_installed_is_not_to_import_it(folder: Path) -> None:
    _write(folder, {"rr_watched": ""})
    hooks, arrived = PostImportHooks(), list[ModuleType]()
    hooks.when_imported("rr_watched", arrived.append)

    assert importlib.util.find_spec("rr_watched") is not None
    made = importlib.import_module("rr_watched")

    assert arrived == [made]
    assert hooks not in sys.meta_path


def test_a_lazy_module_half_executed_is_handed_over_when_it_is_whole(folder: Path) -> None:
    """`from transformers import TrainingArguments` imports torch on its way."""
    arguments = "import rr_torch\nclass Arguments: pass\n"
    _write(folder, {"rr_lazy/__init__": LAZY, "rr_lazy/arguments": arguments, "rr_torch": ""})
    hooks, names = PostImportHooks(), list[str]()

    def torch_arrived(_module: ModuleType) -> None:
        hooks.when_imported("rr_lazy.arguments", lambda one: names.append(one.Arguments.__name__))
        assert not names

    hooks.when_imported("rr_torch", torch_arrived)
    found = getattr(importlib.import_module("rr_lazy"), "Arguments")  # noqa: B009

    assert names == ["Arguments"] == [found.__name__]
    assert type(sys.modules["rr_lazy.arguments"].__spec__) is ModuleSpec
    assert hooks not in sys.meta_path


def test_a_module_waits_for_the_packages_around_it_and_their_circle(folder: Path) -> None:
    _write(
        folder,
        {
            "rr_pack/__init__": "from rr_pack.inner import helper\nlate = 1\n",
            "rr_pack/inner": "import rr_pack.other\ndef helper(): return rr_pack.late\n",
            "rr_pack/other": "import rr_pack.inner\n",
        },
    )
    hooks, heard = PostImportHooks(), list[int]()
    hooks.when_imported("rr_pack.inner", lambda module: heard.append(module.helper()))

    importlib.import_module("rr_pack.other")

    assert heard == [1]


def test_a_copy_that_the_package_made_is_replaced_with_the_original(folder: Path) -> None:
    _write(
        folder,
        {
            "rr_pack/__init__": "from rr_pack.inner import helper\n",
            "rr_pack/inner": "def helper(): return 1\n",
        },
    )
    hooks = PostImportHooks()
    hooks.when_imported(
        "rr_pack.inner", lambda m: torch_table.replace(m, "helper", lambda _: lambda: 2)
    )

    assert importlib.import_module("rr_pack").helper() == 2


def test_a_module_that_fails_is_waited_for_again(folder: Path) -> None:
    _write(folder, {"rr_failing": "import rr_missing\n", "rr_watched": "import rr_failing\n"})
    hooks, arrived = PostImportHooks(), list[ModuleType]()
    hooks.when_imported("rr_watched", arrived.append)
    with pytest.raises(ModuleNotFoundError, match="rr_missing") as failure:
        importlib.import_module("rr_watched")
    files = {entry.path for entry in failure.traceback}
    assert sys.modules[PostImportHooks.__module__].__file__ not in {str(path) for path in files}
    assert not arrived
    _write(folder, {"rr_missing": ""})

    made = importlib.import_module("rr_watched")

    assert arrived == [made]


def test_nothing_of_a_lazy_module_is_asked_for_by_name(folder: Path) -> None:
    """To ask would be to import."""
    owner = ModuleType("rr_eager")
    asked: list[str] = []
    owner.__dict__["__getattr__"] = asked.append

    with pytest.raises(KeyError):
        torch_table.replace(owner, "absent", lambda original: original)

    assert not asked
