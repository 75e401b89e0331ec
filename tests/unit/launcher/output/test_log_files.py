"""Each process of a rank has log files of its own, and the console shows all of them."""

from pathlib import Path

import pytest

from recoverrun.config.options import read
from recoverrun.config.run_config import RunConfig, parse_options
from recoverrun.launcher.output.log_files import LogTree, Outlets
from recoverrun.launcher.output.run_folder import RunFolder
from rendezvous.protocol.incarnations import incarnation


def _outlets(folder: Path, line: str) -> Outlets:
    config = _config(line)
    logs = LogTree(config, RunFolder(folder, "x", "1")).attempt(0)
    return Outlets(config=config, folder=logs, run_dir=folder, node="here")


def _config(line: str) -> RunConfig:
    options = read(["--nproc-per-node", "2", *line.split(), "x.py"], {})
    assert options is not None
    return parse_options(options, {})


def test_what_a_process_of_a_later_birth_says_is_shown_with_the_prefix_of_its_rank(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    outlets = _outlets(tmp_path, "--tee 3")
    files = []
    for birth in (0, 1, 2):
        outlet = outlets.open(5, 1, incarnation(0, birth))
        assert outlet.stdout is not None
        outlet.stdout.write_text(f"birth {birth}\n")
        files.append(outlet.stdout)
        if birth == 0:
            outlets.begin()  # Later ones are opened while lines are being shown.

    outlets.end(10.0)

    assert capfd.readouterr().out == "".join(f"here:5│ birth {birth}\n" for birth in (0, 1, 2))
    assert [file.read_text() for file in files] == [f"birth {birth}\n" for birth in (0, 1, 2)]
    assert [file.parent.name for file in files] == ["1", "return_1", "return_2"]


def test_without_files_each_process_has_an_error_file_of_its_own(tmp_path: Path) -> None:
    outlets = _outlets(tmp_path, "")
    found = [outlets.open(5, 1, incarnation(3, birth)) for birth in (0, 1)]

    assert [outlet.stdout for outlet in found] == [None, None]
    assert found[0].error_file != found[1].error_file


def test_an_error_file_that_was_left_behind_speaks_for_nobody(tmp_path: Path) -> None:
    outlets = _outlets(tmp_path, "--redirects 3")
    left = outlets.open(5, 1, incarnation(0, 1)).error_file
    left.write_text("of another run")

    assert not outlets.open(5, 1, incarnation(0, 1)).error_file.exists()


@pytest.mark.usefixtures("no_threads")
def test_without_a_thread_lines_are_shown_at_the_end(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    outlets = _outlets(tmp_path, "--tee 3")
    outlet = outlets.open(5, 1, incarnation(0, 0))
    assert outlet.stdout is not None
    outlets.begin()
    outlet.stdout.write_text("a line\n")

    outlets.end(0.0)

    assert capfd.readouterr().out == "here:5│ a line\n"
