"""The command lines that start this Python for a script, which are our worker's again."""

import os
import sys

import pytest

from recoverrun.worker.boot.new_program import OURS, as_worker

PYTHON = sys.executable


@pytest.mark.parametrize(
    ("options", "target"),
    [
        ([], ["train.py", "--lr", "3"]),
        (["-u", "-OO", "-X", "dev", "-W", "error"], ["train.py"]),
        ([], ["-m", "project.train", "-u"]),
    ],
)
def test_python_for_a_script_is_a_worker_again(options: list[str], target: list[str]) -> None:
    assert as_worker(PYTHON, ["python", *options, *target]) == ["python", *options, *OURS, *target]
    assert as_worker(os.fsencode(PYTHON), [b"python", *map(os.fsencode, [*options, *target])]) == [
        "python", *options, *OURS, *target
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("program", "arguments"),
    [
        (PYTHON, ["python"]),
        (PYTHON, ["python", "-c", "import torch"]),
        (PYTHON, ["python", "-"]),
        (PYTHON, ["python", "-X"]),
        (PYTHON, ["python", "--version"]),
        ("/bin/sh", ["sh", "train.sh"]),
        ("/elsewhere/python", ["python", "train.py"]),
        (3, ["python", "train.py"]),
        (PYTHON, ["python", 3]),
    ],
)
def test_any_other_program_is_none(program: object, arguments: list[object]) -> None:
    assert as_worker(program, arguments) is None
