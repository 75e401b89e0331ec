"""The structure of the project as tests: layers, circles, floors, names of files, their tests."""

import ast
import inspect
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from typing import get_args

from rendezvous.protocol.exit_codes import MEANINGS
from rendezvous.protocol.messages import Message
from tests.layers import LAYERS, drawn, layer_of, may_import
from tests.sources import ROOT, imported_by, modules, name_of, outline, sources

FLOORS = 18  # may only fall
CLASS_METHODS = 25

# A base name means one thing; these are said of their package, which is named with them.
COMMON_NAMES = {"__init__", "__main__", "errors", "error_file"}

# Each event of a machine is a method.
MACHINES = {
    "rendezvous/consensus/etcd_register.py:LeasedRegister": 28,
    "rendezvous/consensus/paxos.py:Register": 32,
    "rendezvous/bays/served.py:KeptBays": 28,
}

# What torch has as the methods of a process group, and strategies as those of `Strategy`.
LARGE = {
    "ft_collectives/process_group/elastic.py:ElasticGroup": 36,
    "recoverrun/worker/strategies/ddp.py:Ddp": 31,
    "recoverrun/worker/strategies/manual_allreduce.py:ManualAllReduce": 33,
}


# Memos and counters, and what C++ or the process holds once. `ATTACHED`, `REGISTRY` and `HOOKS` are
# written as constants: hooks of the script, its generators and waiting imports, one of each.
STATE_OF_MODULES = {
    "ft_collectives/communicators/c10d.py:_library": "torch's, which has no stubs",
    "ft_collectives/communicators/c10d.py:group_named": "torch's",
    "ft_collectives/communicators/nccl.py:_library": "torch's, which has no stubs",
    "recoverrun/launcher/node/process.py:_descriptors": "the limits that workers inherit",
    "recoverrun/worker/__main__.py:_implied_path": "what `-m` put first in `sys.path`",
    "recoverrun/worker/groups/device_support.py:dist_": "torch's, whose stubs lack a part",
    "recoverrun/worker/rewriting/post_import.py:when_imported": "a method of `HOOKS`",
    "ft_collectives/communicators/left_memory.py:_held": "memory that gloo may still write to",
    "ft_collectives/communicators/fabric.py:_kept_groups": "groups whose threads never end",
    "ft_collectives/communicators/nccl.py:_left_behind": "communicators that cannot be destroyed",
    "ft_collectives/process_group/functional.py:_kept": "work that C++ looks up by its tensor",
    "ft_collectives/process_group/substitutes.py:_calls": "calls under way, by thread",
    "recoverrun/launcher/node/process.py:_libc": "the C library",
    "recoverrun/worker/context/fingerprints.py:_known": "memo",
    "recoverrun/worker/data/iterator_origin.py:_loaders": "memo",
    "recoverrun/worker/data/iterator_origin.py:_numbers": "counter",
    "recoverrun/worker/groups/process_groups.py:_late": "what torch's function of that module does",
    "recoverrun/worker/rng/host_streams.py:_numpy": "memo",
    "recoverrun/worker/rng/host_streams.py:_python": "memo",
    "recoverrun/worker/rng/object_generators.py:_known_kinds": "memo",
    "recoverrun/worker/rng/object_generators.py:_memos": "memo",
    "recoverrun/worker/rng/private_draws.py:draw_sites": "belongs to the streams of the process",
    "recoverrun/worker/rng/streams.py:_process": "a process has one set of streams",
    "rendezvous/transport/sockets.py:_monitors": "counter",
}


def test_every_file_has_a_row_in_the_layer_table() -> None:
    homeless = [name for name in modules() if not layer_of(name)]
    packages = {name for name in homeless if any(one.startswith(f"{name}.") for one in modules())}

    assert not set(homeless) - packages


def _said(name: str) -> str:
    """The first sentence of a package's docstring, or of a file's."""
    path = ROOT / name.replace(".", "/")
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    said = ast.get_docstring(ast.parse(file.read_text())) or ""
    return " ".join(said.split("\n\n")[0].split())


def test_the_page_on_architecture_shows_the_table() -> None:
    page = ROOT / "docs" / "architecture.md"
    before, rest = page.read_text().split("<!-- layers:begin -->\n")
    shown, after = rest.split("<!-- layers:end -->")
    table = drawn(_said) + "\n"

    if os.environ.get("RECOVERRUN_REWRITE") == "1":
        marks = "<!-- layers:begin -->\n", "<!-- layers:end -->"
        page.write_text(f"{before}{marks[0]}{table}{marks[1]}{after}")
    else:
        assert shown == table, "docs/architecture.md is behind tests/layers.py: `make readme`"


def test_the_page_on_torchrun_has_a_row_for_each_exit_code() -> None:
    page = (ROOT / "docs" / "torchrun.md").read_text()
    rows = re.findall(r"^\| (\d+) \| ([^|]+) \|", page, re.MULTILINE)

    assert rows == [(str(code.value), meaning) for code, meaning in MEANINGS.items()]


def test_each_message_says_whose_word_it_is_and_to_whom() -> None:
    way = re.compile(r"[A-Z][\w ]*? <?-> [\w`,>\- ]+:")
    silent = [
        kind.__name__ for kind in get_args(Message) if not way.match(inspect.getdoc(kind) or "")
    ]

    assert not silent


def test_a_row_names_no_package_of_a_later_row() -> None:
    order = list(LAYERS)
    wrong = [
        f"{name} before {other}"
        for name, below in LAYERS.items()
        for other in below
        if order.index(other) > order.index(name) and name != "recoverrun"
    ]

    assert not wrong


def test_a_file_imports_only_what_its_row_names() -> None:
    wrong = [
        f"{name_of(path)}:{line} imports {other}"
        for name, path in modules().items()
        for line, other in imported_by(name)
        if layer_of(other) and not may_import(name, other)
    ]

    assert not wrong, "\n".join(wrong)


def test_the_layer_rule_sees_the_imports_that_it_forbids() -> None:
    step, replay = "recoverrun.worker.step.driver", "recoverrun.worker.replay.executor"

    assert may_import(replay, step)
    assert not may_import(step, replay)
    assert not may_import("recoverrun.launcher.agent", step)
    assert not may_import("rendezvous.membership.formation", "rendezvous.coordinator.members")
    assert not may_import("rendezvous.store.kv", "rendezvous.transport.station")


def _circles(graph: Mapping[str, Iterable[str]]) -> list[set[str]]:
    """Sets of more than one module that import each other, straight or by way of others."""

    @cache
    def reached(name: str) -> frozenset[str]:
        found, todo = set[str](), list(graph[name])
        while todo:
            one = todo.pop()
            if one not in found:
                found.add(one)
                todo += graph[one]
        return frozenset(found)

    circles: list[set[str]] = []
    for name in graph:
        if name in reached(name) and not any(name in circle for circle in circles):
            circles.append({name, *(one for one in reached(name) if name in reached(one))})
    return circles


def test_circles_are_seen() -> None:
    graph = {"a": ["b"], "b": ["c"], "c": ["b"], "d": ["a"]}

    assert _circles(graph) == [{"b", "c"}]


@cache
def _graph() -> dict[str, set[str]]:
    return {name: {other for _, other in imported_by(name)} for name in modules()}


def test_no_files_import_each_other_in_a_circle() -> None:
    """Annotations and imports within functions count: they tie files as firmly as a call."""
    assert not [sorted(circle) for circle in _circles(_graph())]


def test_the_longest_chain_of_imports_has_an_end() -> None:
    graph = _graph()

    @cache
    def floor(name: str) -> int:
        return 1 + max((floor(other) for other in graph[name]), default=0)

    highest = max(graph, key=floor)

    assert floor(highest) <= FLOORS, f"{highest} is on floor {floor(highest)}"


def test_no_two_files_have_one_name() -> None:
    # A command is called after what it shows.
    named = [path for path in modules().values() if "/cli/commands/" not in name_of(path)]
    counts = Counter(path.stem for path in named)
    wrong = [
        f"{name}: {', '.join(name_of(path) for path in named if path.stem == name)}"
        for name, count in sorted(counts.items())
        if count > 1 and name not in COMMON_NAMES
    ]

    assert not wrong, "\n".join(wrong)


def _methods() -> dict[str, int]:
    """The number of methods of each class that has more than it should."""
    found = {}
    for path in sources("recoverrun", "rendezvous", "ft_collectives"):
        for name, count in outline(path).classes:
            if count > CLASS_METHODS:
                found[f"{name_of(path)}:{name}"] = count
    return found


def test_a_class_has_an_end() -> None:
    wrong = {
        name: count
        for name, count in _methods().items()
        if count > max(MACHINES.get(name, 0), LARGE.get(name, 0))
    }

    assert not wrong


def test_exceptions_go_when_they_are_not_needed_any_more() -> None:
    now = _methods()

    assert not {name for name in {**MACHINES, **LARGE} if now.get(name, 0) <= CLASS_METHODS}


def _lower_case_names() -> set[str]:
    """Module-level names that are not written as constants are."""
    return {
        f"{name_of(path)}:{name}"
        for path in sources("recoverrun", "rendezvous", "ft_collectives")
        for name in outline(path).assigned
        if name.islower() and name != "__version__"
    }


def test_what_modules_hold_that_changes_is_known_and_has_a_reason() -> None:
    assert _lower_case_names() == set(STATE_OF_MODULES)


def test_unit_tests_mirror_the_tree() -> None:
    """`unit/worker/replay/test_executor_fresh.py` tests `recoverrun/worker/replay/executor.py`."""
    wrong = []
    for path in sources("tests/unit"):
        folder = path.parent.relative_to(ROOT / "tests" / "unit")
        if not path.stem.startswith("test_"):
            continue
        tops = [ROOT, ROOT / "recoverrun"]
        tested = path.stem.removeprefix("test_")
        known = [one.stem for top in tops for one in (top / folder).glob("*.py")]
        if not any(tested == name or tested.startswith(f"{name}_") for name in known):
            wrong.append(name_of(path))

    assert not wrong, "\n".join(wrong)
