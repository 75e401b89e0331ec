"""Options of `recoverrun inject` among those of the launcher."""

import pytest

from recoverrun.cli.commands.inject import own_first


@pytest.mark.parametrize(
    ("line", "sorted_out"),
    [
        ("--nnodes 3 --kill r1@step:2:vote t.py", "--kill r1@step:2:vote --nnodes 3 t.py"),
        ("--standalone --seed=3 t.py --seed 4", "--seed=3 --standalone t.py --seed 4"),
        ("--kill a -m pkg.mod --kill b", "--kill a -m pkg.mod --kill b"),
        ("--kill", "--kill"),
        ("--nnodes 2 --run-dir x t.py", "--run-dir x --nnodes 2 t.py"),
        ("t.py --kill a", "t.py --kill a"),
    ],
)  # fmt: skip
def test_own_options_come_first_and_those_of_the_script_stay(line: str, sorted_out: str) -> None:
    assert own_first(line.split()) == sorted_out.split()
