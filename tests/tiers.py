"""Two tiers of tests: the sample that `make test` takes, and the rest.

The nearest mark `quick` or `rest` says where a test belongs: on a case, its function or its file.
Without one, tests in the folders `QUICK` belong to the sample, and so does the first case of each
function elsewhere.

What the command line names runs whole. Otherwise pytest takes the sample, `--all` adds the rest,
and `--within SECONDS` as much of the rest as there is time for: half of these seconds at
least, also where a busy machine has needed them all to find the tests.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

QUICK = frozenset({"conformance", "integration", "scenarios", "unit"})
"""Folders whose tests take milliseconds."""

SAMPLE = "sample"
"""The name by which a process of pytest-xdist is told whether it takes the sample."""

OUT_OF_TIME = "out of time: make test-all runs it"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tiers")
    group.addoption("--all", action="store_true", help="run the sample and the rest")
    group.addoption("--warm", action="store_true", help="fork launchers and workers (tests/warm)")
    group.addoption(
        "--within",
        type=float,
        metavar="SECONDS",
        help="run the sample, then the rest, a few tests of each file in turn; "
        "begin no test later than SECONDS after the start",
    )


def pytest_configure(config: pytest.Config) -> None:
    seconds = config.getoption("within")
    if seconds is not None:
        config.pluginmanager.register(Deadline(seconds))
    elif _is_sample(config):
        config.pluginmanager.register(Sample())


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """pytest-xdist names what its processes run: they would take it for the command line's."""
    node.workerinput[SAMPLE] = _is_sample(node.config)


def _is_sample(config: pytest.Config) -> bool:
    of_process: Mapping[str, Any] | None = getattr(config, "workerinput", None)
    if of_process is not None:
        return bool(of_process[SAMPLE])
    return not config.getoption("all") and config.args_source != config.ArgsSource.ARGS


class Sample:
    """Leave out the rest."""

    @pytest.hookimpl(trylast=True)  # the first case of those that other options leave
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        items[:], rest = split(items)
        config.hook.pytest_deselected(items=rest)


class Deadline:
    """Begin no test after a time; put those first that matter most."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._at = monotonic() + seconds
        self._left: list[pytest.Item] = []

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for tier in split(items) for item in breadth_first(tier)]

    @pytest.hookimpl
    def pytest_collection_finish(self) -> None:
        self._at = max(self._at, monotonic() + self._seconds / 2)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        """Pass over the test. To skip it takes 2 ms, for all unit tests 20 s."""
        if monotonic() <= self._at:
            return None
        self._left.append(item)
        return True

    @pytest.hookimpl(tryfirst=True)  # before the summary is printed
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        session.config.hook.pytest_deselected(items=self._left)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._left:
            terminalreporter.write_line(f"{len(self._left)} tests left out: {OUT_OF_TIME}")


def split(items: Iterable[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Return the sample and the rest, each in the given order."""
    sample, rest, functions = [], [], set()
    for item in items:
        function = item.nodeid.partition("[")[0]
        quick = _is_quick(item, first=function not in functions)
        functions.add(function)
        (sample if quick else rest).append(item)
    return sample, rest


def breadth_first(items: Iterable[pytest.Item]) -> Iterator[pytest.Item]:
    """Yield 1 item of each file, then the next 2 of each, the next 4, and so on.

    Turns grow because what a file prepares for its tests is made once in each.
    """
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    begin, count = 0, 1
    while begin < max(map(len, files.values()), default=0):
        for tests in files.values():
            yield from tests[begin : begin + count]
        begin, count = begin + count, 2 * count


def _is_quick(item: pytest.Item, *, first: bool) -> bool:
    for node in item.iter_parents():
        # The marks of a case come after those of its function.
        for mark in reversed(node.own_markers):
            if mark.name in ("quick", "rest"):
                return mark.name == "quick"
    folder, *inner = item.path.relative_to(item.config.rootpath / "tests").parts
    return first or not inner or folder in QUICK
