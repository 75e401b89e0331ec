"""The texts of a program as records: values come to variables, parameters and attributes."""

import ast
from textwrap import dedent

import pytest

from recoverrun.worker.analysis.program_text import Assignment, ProgramText
from recoverrun.worker.analysis.rank_flow import ATTRIBUTE, RESULT

FILE = "train.py"


def text_of(source: str, *, of_loops: bool = False) -> ProgramText:
    tree = ast.parse(dedent(source))
    loops = [node for node in ast.walk(tree) if isinstance(node, ast.For)]
    return ProgramText({FILE: tree}, loops if of_loops else [])


def values_of(text: ProgramText, name: str, scope: str = "") -> list[str]:
    """The values that come to a variable of the function `scope`, or of the module."""
    owner = id(text.project.functions[scope][0]) if scope else 0
    return [ast.unparse(one.value) for one in text.records if (owner, name) in one.targets]


@pytest.mark.parametrize(
    ("source", "values"),
    [
        ("a = 1", ["1"]),
        ("a: int = 1", ["1"]),
        ("b = (a := f())", ["f()"]),
        ("a += 2", ["a + 2"]),
        ("a, b = 1, 2", ["1"]),
        ("a, *b = f()", ["f()"]),
        ("for a in items: pass", ["items"]),
        ("with f() as a: pass", ["f()"]),
        ("a[k] = 1", ["(k, 1)"]),
        ("a.append(x)", ["(x,)"]),
    ],
)
def test_a_value_comes_to_the_variable_that_is_written(source: str, values: list[str]) -> None:
    assert values_of(text_of(source), "a") == values


def test_what_a_call_gives_comes_to_the_parameter_that_it_is_given_to() -> None:
    text = text_of(
        """
        def share(first, *others, step=1, **rest): return first
        share(a, b, c, step=d, size=e)
        share(*several)
        """
    )

    assert values_of(text, "first", "share") == ["a", "*several"]
    rest = ["b", "c", "e", "*several"]  # by position or by name: it may be either
    assert values_of(text, "others", "share") == values_of(text, "rest", "share") == rest
    assert values_of(text, "step", "share") == ["d"]
    assert values_of(text, RESULT, "share") == ["first"]


def test_an_object_is_given_what_its_constructor_or_that_of_a_base_takes() -> None:
    text = text_of(
        """
        class Base:
            def __init__(self, rows): self.rows = rows
            def turn(self, to): self.rows = to
        class Lines(Base): pass
        Lines(share)
        """
    )

    assert values_of(text, "rows", "Base") == ["share"]
    assert [one.name for one in text.constructors("Lines")] == ["__init__"]
    assert [one.name for one in text.methods("Base")] == ["__init__", "turn"]
    assert [ast.unparse(one.value) for one in text.attributes["Base", "rows"]] == ["rows"]
    assert [ast.unparse(one.value) for one in text.written_later["rows"]] == ["to"]
    assert text.stored == {"rows"}


def test_bases_that_go_in_a_circle_have_no_constructors() -> None:
    assert text_of("class A(B): pass\nclass B(A): pass").constructors("A") == []


def test_a_library_is_not_written_to() -> None:
    text = text_of("import torch\ntorch.seed = 1\ntorch.rows[0] = 2\nown.rows[0] = 3")

    targets = [one.targets for one in text.records]

    assert targets == [((ATTRIBUTE, "seed"),), (), ((ATTRIBUTE, "rows"),)]


def record(text: ProgramText, name: str) -> Assignment:
    return next(one for one in text.records if any(name == of for _, of in one.targets))


def test_a_record_knows_the_tests_that_decide_and_the_loop_that_turns() -> None:
    text = text_of(
        """
        once = 1
        for item in items:
            if x:
                if y:
                    deep = 1
            count += 1
            rows.sort()
            turn()
        def turn():
            inner = 2
        def other():
            outer = 3
        """,
        of_loops=True,
    )

    assert [ast.unparse(one) for one in record(text, "deep").tests] == ["x", "y"]
    assert [record(text, name).turns for name in ("once", "deep", "inner", "outer")] == [
        False, True, True, False,
    ]  # fmt: skip
    assert [record(text, name).moves for name in ("deep", "count", "rows")] == [False, True, True]


def test_functions_are_found_by_their_line() -> None:
    source = """
        @wraps
        def draw(x): return x
        weigh = lambda x: x
        """
    text = text_of(source)

    def found(line: int, name: str) -> list[type[ast.AST]]:
        return [type(node) for _, node in text.functions_at(FILE, line, name)]

    assert found(2, "draw") == found(3, "draw") == [ast.FunctionDef]
    assert found(4, "<lambda>") == [ast.Lambda]
    assert found(4, "draw") == found(3, "<lambda>") == []
    assert list(text.functions_at("other.py", 2, "draw")) == []


def test_a_function_reads_variables_around_it_attributes_and_its_defaults() -> None:
    text = text_of("def draw(x, at=START, *, by=STEP):\n    y = x + seed\n    return y * own.scale")
    function = text.project.functions["draw"][0]

    names, attributes, defaults = text.free_in(function)

    assert names == {"seed", "own", "START", "STEP"}
    assert attributes == {"scale"}
    assert [ast.unparse(one) for one in defaults] == ["START", "STEP"]


def test_the_arguments_of_calls_are_known_by_the_bare_name() -> None:
    text = text_of("data.Rows(first, size=2)")

    assert [ast.unparse(node) for _, node in text.calls["Rows"]] == ["first", "2"]
