"""The questions that shells ask the program."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from recoverrun.cli.completion import run_names
from rendezvous.protocol.exit_codes import ExitCode


def _ask(shell: str, line: str) -> str:
    words = line.split(" ")
    env = {
        **os.environ,
        "_RECOVERRUN_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
        "_TYPER_COMPLETE_ARGS": line,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    done = subprocess.run(
        [sys.executable, "-m", "recoverrun"], env=env, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("recoverrun post", "postmortem"),
        ("recoverrun --nproc", "--nproc-per-node"),
        ("recoverrun postmortem --ver", "--verify"),
    ],
)
def test_bash_is_told_commands_and_options(line: str, expected: str) -> None:
    assert expected in _ask("bash", line).split()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_is_told_the_names_of_job_files(shell: str) -> None:
    told = _ask(shell, "recoverrun template s")

    assert set(re.findall(r"\b(slurm|systemd|skypilot|jobset|some_file)\b", told)) == {
        "slurm", "systemd", "skypilot"
    }  # fmt: skip


def test_runs_are_completed_by_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("train/20261128-1", "train/20261128-2", "trial/88121-0"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "events.gpu-01.jsonl").touch()
    monkeypatch.chdir(tmp_path)

    assert run_names("") == [
        "latest", "train/20261128-1", "train/20261128-2", "trial/88121-0"
    ]  # fmt: skip
    assert run_names("tri") == ["trial/88121-0"]
    assert run_names("./") == []


def test_a_script_is_completed_by_the_shell_itself() -> None:
    assert _ask("bash", "recoverrun tra").strip() == ""
    asked = f"{shlex.quote(sys.executable)} -m recoverrun --show-completion; true"
    done = subprocess.run(
        ["bash", "-c", asked],  # the shell is found among the parents of the process
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert "complete -o default -F _recoverrun_completion recoverrun" in done.stdout


@pytest.mark.parametrize("words", [["--print-completion", "zsh"], ["--print_completion=zsh"]])
def test_a_shell_that_is_named_is_told_as_by_torchrun(words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "recoverrun", *words], capture_output=True, text=True, timeout=60
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("#compdef recoverrun")


def test_a_shell_that_nobody_knows_is_refused_with_those_that_are_known() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "recoverrun", "--print-completion", "tcsh"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip

    assert done.returncode == 2
    assert done.stderr == (
        "recoverrun: --print-completion is for bash, zsh, fish, not for 'tcsh'\n"
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("postmortem --htm a.html", "there is no option --htm, did you mean --html? (see `"),
        ("status a b", "got unexpected extra argument(s) (b) (see `recoverrun status --help`)"),
        ("runs --keep x", "invalid value for '--keep': "),
        ("inject --kill", "option '--kill' requires an argument"),
        ("--nnodes 2 --rdzv-endpoint a:x b.py", "--rdzv-endpoint must be host:port, not 'a:x'"),
        ("--key-file nowhere -m json.tool", "nowhere"),
    ],
)
def test_an_error_in_a_command_line_is_one_sentence(arguments: str, sentence: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "recoverrun", *arguments.split()], capture_output=True, text=True
    )

    assert done.returncode == 2
    assert done.stdout == ""
    assert sentence in done.stderr
    assert done.stderr.startswith("recoverrun: ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("line", "code"), [("--nnodes=0 true", 2), ("--run-dir /dev/null/x --no-python true", 2)]
)
def test_that_nobody_reads_an_error_changes_no_exit_code(line: str, code: int) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "recoverrun", *line.split()], stderr=writing, timeout=60
        )
    finally:
        os.close(writing)

    assert done.returncode == code


@pytest.mark.parametrize("arguments", [["--version", "--json"], ["--help"], ["runs"]])
def test_an_output_for_which_there_is_no_room_is_one_sentence(
    arguments: list[str], tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "recoverrun", *arguments]
    env = {**os.environ, "PYTHONPATH": os.getcwd()}
    with open("/dev/full", "wb") as full:
        ended = subprocess.run(
            command, cwd=tmp_path, env=env, stdout=full, stderr=subprocess.PIPE, timeout=60
        )

    words = b"recoverrun: the output cannot be written: No space left on device\n"
    assert (ended.returncode, ended.stderr) == (1, words)


# A Ctrl-C comes while the launcher's own code is imported.
INTERRUPTED = """
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "recoverrun.launcher.agent":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
from recoverrun.cli.main import main
sys.argv[1:] = ["--no-python", "true"]
main()
"""


def test_a_ctrl_c_during_our_own_imports_is_one_sentence() -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=60
    )

    assert (done.returncode, done.stderr) == (
        ExitCode.INTERRUPTED,
        "recoverrun: stopped by SIGINT\n",
    )
