"""Files of logs as torchrun lays them out, and lines on the console that say whose they are."""

import re
import socket

import pytest

from tests.parity.driver import PROBE, Driver, Job

pytestmark = pytest.mark.e2e

TWO = "--nproc-per-node=2"
TALK = "*:*:print=out *:*:err=error"


def _tree(job: Job) -> dict[str, list[str]]:
    """Path below the log directory, with the random part named; the lines without the probe's."""
    found = {}
    for path in sorted((job.folder / "logs").rglob("*")):
        if path.is_file():
            name = str(path.relative_to(job.folder / "logs"))
            name = re.sub(r"^(\w+)_[^/]{8}/", r"\1_RANDOM/", name)
            lines = path.read_text().splitlines()
            found[name] = [line for line in lines if "PROBE" not in line]
    return found


@pytest.mark.parametrize(
    "options",
    [
        ["--redirects=3"],
        ["-r1"],
        ["-r", "0:1,1:2"],
        ["--tee=3"],
        ["-t", "1:3"],
        ["-r", "3", "-t", "1"],
        [],
        ["--tee=3", "--local-ranks-filter=1"],
    ],
    ids=" ".join,
)
def test_the_same_files_with_the_same_content(driver: Driver, options: list[str]) -> None:
    c10d = ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--rdzv-id=job"]

    theirs, ours = driver.both("--log-dir=logs", *c10d, TWO, *options, PROBE, PROBE_DO=TALK)

    assert (theirs.code, ours.code) == (0, 0)
    assert _tree(ours) == _tree(theirs)


def test_every_attempt_has_a_folder(driver: Driver) -> None:
    do = f"{TALK} 0:0:exit=1"
    c10d = ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--rdzv-id=job"]

    theirs, ours = driver.both(
        "--log-dir=logs", *c10d, "-r3", "--max-restarts=1", PROBE, PROBE_DO=do
    )

    assert (theirs.code, ours.code) == (0, 0)
    assert _tree(ours) == _tree(theirs)


def test_the_workers_file_for_errors_is_beside_its_streams(driver: Driver) -> None:
    theirs, ours = driver.both("--log-dir=logs", "--rdzv-id=job", PROBE)

    for job in (theirs, ours):
        path = job.probes[0]["env"]["TORCHELASTIC_ERROR_FILE"]
        assert re.search(r"(^|/)logs/[^/]+_[^/]{8}/attempt_0/0/error\.json$", path)


def test_without_a_wish_streams_are_the_launchers(driver: Driver) -> None:
    theirs, ours = driver.both(TWO, PROBE, PROBE_DO=TALK)

    for job in (theirs, ours):
        assert job.out.splitlines().count("out") == 2
        assert job.err.splitlines().count("error") == 2


def test_what_is_redirected_is_not_shown(driver: Driver) -> None:
    theirs, ours = driver.both(TWO, "--redirects=3", PROBE, PROBE_DO=TALK)

    assert theirs.out == ours.out == ""
    assert "error" not in ours.err.splitlines()


def test_a_line_says_whose_it_is(driver: Driver) -> None:
    theirs, ours = driver.both(TWO, "--tee=3", PROBE, PROBE_DO=TALK)

    assert {"[default0]:out", "[default1]:out"} <= set(theirs.out.splitlines())
    for rank in (0, 1):
        assert re.search(rf"^\S+:{rank}│ out$", ours.out, re.MULTILINE)
        assert re.search(rf"^\S+:{rank}│ error$", ours.err, re.MULTILINE)


def test_a_prefix_of_the_users_is_the_users(driver: Driver) -> None:
    template = "[${role_name}|${rank}|${local_rank}]:"

    theirs, ours = driver.both(
        TWO, "--tee=1", PROBE, PROBE_DO=TALK, TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE=template
    )

    for job in (theirs, ours):
        assert {"[default|0|0]:out", "[default|1|1]:out"} <= set(job.out.splitlines())


def test_a_prefix_may_name_the_host(driver: Driver) -> None:
    """An option of torchrun since torch 2.14; it is stronger than the variable."""
    option = "--log-line-prefix-template=${hostname}/${rank}: "
    variable = {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "${role_name}: "}

    ours = driver.run(True, TWO, option, "--tee=1", PROBE, PROBE_DO=TALK, **variable)

    host = socket.gethostname()
    assert {f"{host}/0: out", f"{host}/1: out"} <= set(ours.out.splitlines())


@pytest.mark.parametrize("options", [[], ["--tee=3"]], ids=["inherited", "tee"])
def test_only_the_wanted_ranks_are_shown(driver: Driver, options: list[str]) -> None:
    theirs, ours = driver.both(
        TWO, *options, "--local-ranks-filter=1", PROBE, PROBE_DO="*:*:print=${rank}"
    )

    for job in (theirs, ours):
        assert [probe["rank"] for probe in job.probes] == [1]


def test_global_ranks_can_be_chosen_too(driver: Driver) -> None:
    job = driver.run(True, TWO, "--ranks-filter=0", PROBE)

    assert [probe["rank"] for probe in job.probes] == [0]


def test_lines_with_wanted_words_are_copied(driver: Driver) -> None:
    line = ["--log-dir=logs", TWO, "--tee=3", "--duplicate-stdout-filters=apple,pear",
            "--duplicate-stderr-filters=plum"]  # fmt: skip
    do = "*:*:print=an_apple *:*:print=nothing *:*:err=a_plum 1:*:print=pear"

    jobs = driver.both(*line, PROBE, PROBE_DO=do)

    for job in jobs:
        copies = {
            path.name: sorted(
                line for line in path.read_text().splitlines() if "PROBE" not in line
            )
            for path in job.folder.glob("logs/*/attempt_0/filtered_*.log")
        }  # fmt: skip
        apples = ["[default0]:an_apple", "[default1]:an_apple", "[default1]:pear"]
        assert copies["filtered_stdout.log"] == apples
        assert copies["filtered_stderr.log"] == ["[default0]:a_plum", "[default1]:a_plum"]


def test_the_terminal_is_safe_and_the_file_raw(driver: Driver) -> None:
    job = driver.run(True, "-t1", PROBE, PROBE_DO="0:*:print=\x1b[2Jevil\x1b[31mred\x1b[0m")

    assert "\x1b[2J" not in job.out
    assert "\x1b[31mred" in job.out
    (path,) = job.folder.glob("runs/probe/latest/logs/*/attempt_0/0/stdout.log")
    assert b"\x1b[2Jevil" in path.read_bytes()


def test_a_log_directory_that_is_a_file_is_refused(driver: Driver) -> None:
    theirs, ours = driver.both(f"--log-dir={PROBE}", PROBE)

    assert theirs.code == 1
    assert ours.code == 2 and "no log directory" in ours.err
