"""Options of `recoverrun inject` among those of the launcher."""

import pytest
import typer

from recoverrun.cli.commands.inject import inject, own_first
from recoverrun.errors import RecoverrunError
from rendezvous.protocol.exit_codes import ExitCode


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


def test_an_option_that_nobody_knows_is_told_before_a_schedule_that_lacks() -> None:
    with pytest.raises(RecoverrunError, match="there is no option --stall") as error:
        inject("--stall r1@step:2 t.py".split())

    assert error.value.exit_code == ExitCode.USAGE


def test_without_a_schedule_the_sentence_shows_one() -> None:
    with pytest.raises(typer.BadParameter, match="for example --kill r1@step:12:reduce"):
        inject(["t.py"])
