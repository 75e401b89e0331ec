"""Conditions and decorators that let no other rank than 0 pass, as a script's text tells them."""

import ast
from textwrap import dedent

import pytest

from recoverrun.worker.analysis.rank0_guards import Rank0Guards, is_guarded
from recoverrun.worker.analysis.rank_conditions import bound_names

BEGINS = """
rank = dist.get_rank()
local_rank = int(os.environ["LOCAL_RANK"])
"""


def asked(test: str, *, sense: bool = True, script: str = "", other: str = "") -> str:
    """The part of `test` that is a guard in `script`; `other` is another module of the project."""
    trees = [ast.parse(BEGINS + dedent(text)) for text in (script, other)]
    modules = [(tree, bound_names(tree)) for tree in trees]
    condition = ast.parse(test, mode="eval").body
    found = Rank0Guards(modules).asked(condition, sense, modules[0][1])
    return "" if found is None else ast.unparse(found)


@pytest.mark.parametrize(
    "test",
    [
        "rank == 0",
        "0 == rank",
        "rank < 1",
        "not rank",
        "dist.get_rank() == 0",
        "self.rank == 0",
        "int(os.environ['RANK']) == 0",
        "rank in (-1, 0)",
        "is_main_process()",
        "accelerator.is_main_process",
        "self._is_main",
    ],
)
def test_a_condition_that_only_rank_0_of_the_world_fulfils_is_a_guard(test: str) -> None:
    assert asked(test) == test


@pytest.mark.parametrize(
    "test", ["local_rank == 0", "int(os.environ['LOCAL_RANK']) == 0", "accelerator.is_local_zero"]
)
def test_so_is_one_that_the_first_process_of_a_node_fulfils(test: str) -> None:
    assert asked(test) == test


@pytest.mark.parametrize(
    "test",
    [
        "rank == 1",
        "rank != 0",
        "rank",
        "rank >= 0",
        "rank in (0, 1)",
        "step == 0",
        "shard_rank == 0",
        "mesh.tp_rank == 0",
        "dist.get_rank(group) == 0",
        "group.rank() == 0",
        "lora_rank == 0",
        "not is_main_process()",
    ],
)
def test_a_condition_that_another_rank_may_fulfil_is_none(test: str) -> None:
    assert asked(test) == ""


@pytest.mark.parametrize(
    "test", ["rank != 0", "rank > 0", "1 <= rank", "rank", "dist.get_rank()", "not is_main()"]
)
def test_rank_0_alone_comes_past_a_condition_that_holds_for_all_others(test: str) -> None:
    assert asked(test, sense=False) == test


@pytest.mark.parametrize("test", ["is_main()", "rank == 0", "shard_rank", "gpu", "step"])
def test_others_come_past_one_that_does_not_hold_for_all_of_them(test: str) -> None:
    assert asked(test, sense=False) == ""


@pytest.mark.parametrize(
    ("test", "part"),
    [
        ("rank == 0 and step % 10 == 0", "rank == 0"),
        ("step % 10 == 0 and is_main", "is_main"),
        ("args.log and (rank == 0 and best)", "rank == 0"),
        ("rank == 0 or step == 5", ""),
        ("shard_rank == 0 and rank == 0", "rank == 0"),
    ],
)
def test_all_must_hold_where_parts_are_joined_by_and(test: str, part: str) -> None:
    assert asked(test) == part


@pytest.mark.parametrize(
    ("test", "part"),
    [("rank != 0 or step % 10", "rank != 0"), ("rank != 0 and step % 10", "")],
)
def test_none_may_hold_where_parts_are_joined_by_or_and_it_does_not_hold(
    test: str, part: str
) -> None:
    assert asked(test, sense=False) == part


@pytest.mark.parametrize(
    "script",
    [
        "chief = rank == 0",
        "chief = dist.get_rank() == 0",
        "me = dist.get_rank()\nchief = me == 0",
        "chief = True\nif distributed: chief = rank == 0",
    ],
)
def test_a_name_that_is_bound_to_such_a_condition_is_a_guard(script: str) -> None:
    assert asked("chief", script=script) == "chief"


@pytest.mark.parametrize(
    "script", ["chief = stage == 0", "chief = rank == 0\nchief = step > 5", "chief = True"]
)
def test_a_name_that_is_bound_to_anything_else_is_none(script: str) -> None:
    assert asked("chief", script=script) == ""


@pytest.mark.parametrize(
    "meaning",
    [
        "is_main = group.rank() == 0",
        "is_main = stage == 0",
        "def is_main():\n    return group.rank() == 0",
        "def is_main(): ...",
        "def train(is_main): ...",
        "self.is_main = mesh.get_local_rank() == 0",
    ],
)
def test_a_flag_that_any_module_gives_another_meaning_is_none(meaning: str) -> None:
    assert asked("is_main", script=meaning) == ""
    assert asked("is_main", other=meaning) == ""
    assert asked("rank == 0", other=meaning) == "rank == 0"


@pytest.mark.parametrize(
    "meaning",
    [
        "is_main = rank == 0",
        "is_main = True",
        "def is_main():\n    return dist.get_rank() == 0",
        "def is_main():\n    if not on: return True\n    return dist.get_rank() == 0",
    ],
)
def test_a_flag_of_the_projects_with_the_usual_meaning_is_one(meaning: str) -> None:
    assert asked("is_main", other=meaning) == "is_main"


@pytest.mark.parametrize(
    ("decorator", "guarded"),
    [
        ("rank_zero_only", True),
        ("utilities.rank_zero_only", True),
        ("accelerator.on_main_process", True),
        ("accelerator.on_main_process()", True),
        ("accelerator.on_process(process_index=1)", False),
        ("torch.no_grad()", False),
    ],
)
@pytest.mark.parametrize("kind", ["def", "async def"])
def test_decorators_of_frameworks_let_rank_0_alone_execute(
    decorator: str, guarded: bool, kind: str
) -> None:
    function = ast.parse(f"@torch.no_grad()\n@{decorator}\n{kind} save(): ...").body[0]

    assert isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
    assert is_guarded(function) is guarded
