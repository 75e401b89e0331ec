"""The two tiers of tests: what the sample holds, in which order the rest follows, when it stops."""

import itertools

import pytest

from tests import tiers

pytest_plugins = ["pytester"]

NUMBERS = """
import pytest

@pytest.mark.parametrize("n", range({count}))
def test_number(n): pass
"""

ENDED = """
import pytest

@pytest.fixture(scope="session", autouse=True)
def fixture():
    yield
    print("the fixture has ended")
"""

MARKED = """
import pytest

pytestmark = pytest.mark.rest

def test_of_the_file(): pass

@pytest.mark.quick
def test_of_its_own(): pass

@pytest.mark.parametrize("n", [1, pytest.param(2, marks=pytest.mark.quick)])
def test_cases(n): pass
"""


class Project:
    """A repository that has these two tiers."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self._pytester = pytester
        pytester.makeini("[pytest]\ntestpaths = tests\nmarkers =\n    quick:\n    rest:\n")

    def file(self, name: str, text: str) -> None:
        self._pytester.makepyfile(**{f"tests/{name}": text})

    def run(self, *arguments: str) -> pytest.RunResult:
        plugins = ("tests.tiers", "no:cacheprovider", "no:hypothesispytest", "no:timeout")
        given = [word for plugin in plugins for word in ("-p", plugin)]
        return self._pytester.runpytest_inprocess(*given, "-v", "-rs", *arguments)

    def ran(self, *arguments: str) -> list[str]:
        """Return the tests that ran, in their order, without folders."""
        lines = self.run(*arguments).outlines
        return [line.split()[0].rpartition("/")[2] for line in lines if " PASSED" in line]


@pytest.fixture
def project(pytester: pytest.Pytester) -> Project:
    return Project(pytester)


def names(name: str, *numbers: int) -> list[str]:
    return [f"{name}.py::test_number[{number}]" for number in numbers]


def test_the_sample_is_all_of_fast_folders_and_the_first_case_of_functions_elsewhere(
    project: Project,
) -> None:
    project.file("unit/test_fast", NUMBERS.format(count=3))
    project.file("e2e/test_slow", NUMBERS.format(count=3))
    project.file("test_house", NUMBERS.format(count=3))

    assert sorted(project.ran()) == [
        *names("test_fast", 0, 1, 2),
        *names("test_house", 0, 1, 2),
        *names("test_slow", 0),
    ]


@pytest.mark.parametrize("folder", ["e2e", "unit"])
def test_the_nearest_mark_decides(project: Project, folder: str) -> None:
    project.file(f"{folder}/test_marked", MARKED)

    assert project.ran() == ["test_marked.py::test_of_its_own", "test_marked.py::test_cases[2]"]


def test_what_is_left_out_is_counted(project: Project) -> None:
    project.file("e2e/test_slow", NUMBERS.format(count=3))

    project.run().assert_outcomes(passed=1, deselected=2)


@pytest.mark.parametrize("argument", ["tests", "tests/e2e/test_slow.py", "--all", "--within=60"])
def test_what_is_named_or_asked_for_runs_whole(project: Project, argument: str) -> None:
    project.file("e2e/test_slow", NUMBERS.format(count=3))

    assert project.ran(argument) == names("test_slow", 0, 1, 2)


@pytest.mark.parametrize(("arguments", "passed"), [((), 1), (("--all",), 3), (("tests",), 3)])
def test_so_it_is_in_processes_that_share_the_tests(
    project: Project, arguments: tuple[str, ...], passed: int
) -> None:
    project.file("e2e/test_slow", NUMBERS.format(count=3))

    project.run("--numprocesses=2", *arguments).assert_outcomes(passed=passed)


def test_the_first_case_is_the_first_that_other_options_leave(project: Project) -> None:
    project.file("e2e/test_slow", NUMBERS.format(count=3))

    assert project.ran("-k", "not 0") == names("test_slow", 1)


def test_against_time_the_sample_comes_first_and_then_a_few_of_each_file_in_turn(
    project: Project,
) -> None:
    for name in ("a", "b"):
        project.file(f"e2e/test_{name}", NUMBERS.format(count=6))

    assert project.ran("--within=60") == [
        *names("test_a", 0),
        *names("test_b", 0),
        *names("test_a", 1),
        *names("test_b", 1),
        *names("test_a", 2, 3),
        *names("test_b", 2, 3),
        *names("test_a", 4, 5),
        *names("test_b", 4, 5),
    ]


def test_out_of_time_what_has_not_begun_is_left_out_and_counted(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.file("e2e/test_slow", NUMBERS.format(count=5))
    # Each look at the clock is a second after the last one: at the start, when the tests are found,
    # and before each test.
    monkeypatch.setattr(tiers, "monotonic", itertools.count().__next__)

    result = project.run("--within=3")

    result.assert_outcomes(passed=2, deselected=3)
    result.stdout.fnmatch_lines([f"3 tests left out: {tiers.OUT_OF_TIME}"])


def test_what_was_begun_in_time_is_ended_also_where_tests_after_it_are_left_out(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.file("e2e/test_slow", ENDED + NUMBERS.format(count=3))
    monkeypatch.setattr(tiers, "monotonic", itertools.count().__next__)

    result = project.run("--within=2", "-s")

    result.assert_outcomes(passed=1, deselected=2)
    result.stdout.fnmatch_lines(["*the fixture has ended*"])


def test_half_of_the_time_is_for_tests_however_long_it_took_to_find_them(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.file("e2e/test_slow", NUMBERS.format(count=5))
    looks = itertools.chain([0], itertools.count(100))
    monkeypatch.setattr(tiers, "monotonic", looks.__next__)

    project.run("--within=4").assert_outcomes(passed=2, deselected=3)
