"""The fingerprint that the nodes of a job have in common, and versions of torch that are told."""

import dataclasses
import sys
from pathlib import Path

import pytest

from recoverrun.config.options import read
from recoverrun.config.run_config import parse_options
from recoverrun.launcher.network.job_fingerprint import (
    TORCH_TRIED,
    differences,
    is_same_job,
    job_fingerprint,
    join_message,
    running_message,
    untried,
)
from rendezvous.protocol.formation_messages import Join

OLDEST, NEWEST = (f"{major}.{minor}" for major, minor in TORCH_TRIED)


def join(**changes: str) -> Join:
    known = Join(
        run_id="job", node="a", incarnation="one", node_rank=-1, nproc=2, version="1",
        script="train.py", arguments="digest", torch="2.13.0",
    )  # fmt: skip
    return dataclasses.replace(known, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("torch", ["", f"{OLDEST}.0", "2.13.0", f"{NEWEST}.1", f"{NEWEST}.0a0"])
def test_nothing_is_said_of_a_torch_that_was_tried(torch: str) -> None:
    assert untried(torch) == ""
    assert differences([join(torch=torch)] * 2) == []


@pytest.mark.parametrize("torch", ["2.4.1", "2.10.0", "2.99.0", "3.0.0", "1.13.1"])
def test_one_sentence_is_said_of_a_torch_that_was_not(torch: str) -> None:
    (record,) = differences([join(torch=torch)] * 2)

    assert record.reason == (
        f"recoverrun was never tried with torch {torch}, only with {OLDEST} to {NEWEST}"
    )


def test_arguments_that_differ_are_told() -> None:
    one, two = join(), join(node="b", arguments="other")

    (record,) = differences([one, two])

    assert record.reason == "train.py has other arguments on b than on a"


@pytest.mark.parametrize(
    ("here", "there", "told"),
    [
        ({"content": "ab"}, {"content": "ab", "python": "3.11"}, ()),
        ({"content": "ab"}, {"content": "cd"}, ("train.py on b is another file than on a",)),
        ({"content": ""}, {"content": "cd"}, ()),
        ({"python": "3.11"}, {"python": "3.12"}, ("b has Python 3.12, a 3.11",)),
    ],
)
def test_another_file_of_the_same_name_and_another_python_are_told(
    here: dict[str, str], there: dict[str, str], told: tuple[str, ...]
) -> None:
    records = differences([join(**here), join(node="b", **there)])

    assert [record.reason.partition(":")[0] for record in records] == list(told)


def test_nodes_tell_the_content_of_their_script(tmp_path: Path) -> None:
    scripts = [tmp_path / name / "train.py" for name in "abc"]
    for script, text in zip(scripts, ("pass", "pass", "pass  # edited"), strict=True):
        script.parent.mkdir()
        script.write_text(text)

    found = []
    for script in scripts:
        options = read([str(script)], {})
        assert options is not None
        found.append(job_fingerprint(parse_options(options, {})))
    one, same, other = found

    assert one == same and one.python == "{}.{}".format(*sys.version_info)
    assert one.script == other.script and one.content != other.content


def test_a_job_is_our_own_if_it_was_started_with_the_same_command() -> None:
    running = running_message(join(listen=7), 2)  # type: ignore[arg-type]

    assert is_same_job(dataclasses.replace(running, address="10.0.0.1"), join(), 2)
    assert not is_same_job(running, join(), 3)
    for field in ("run_id", "script", "arguments", "agreement"):
        assert not is_same_job(running, join(**{field: "other"}), 2), field
    assert not is_same_job(running, dataclasses.replace(join(), options=("--exact",)), 2)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("train.py", ()),
        ("--on-hang tell --max-restarts 3 --min-replicas 1 train.py --exact", ()),
        ("--exact --no-return train.py", ("--exact", "--no-return")),
        (
            "--check-finite --check-params-every 9 --snapshot-every 5 train.py",
            ("--check-finite", "--check-params-every=9", "--snapshot-every=5"),
        ),
        ("--no-protect train.py", ("--no-protect",)),
        ("--snapshot-every 0 train.py", ("--snapshot-every=0",)),
        ("--nnodes 1:2 --snapshot-every 0 train.py", ()),
        ("--nnodes 1:2 --snapshot-every 5 train.py", ("--snapshot-every=5",)),
        ("--no-python train.sh", ("--no-python",)),
    ],
)
def test_options_by_which_workers_go_different_ways_are_told(
    line: str, told: tuple[str, ...]
) -> None:
    options = read(line.split(), {})
    assert options is not None
    config = parse_options(options, {})

    joins = join_message(
        config, node="a", incarnation="one", master="", attempt=0, agreement="", listen=0
    )
    assert joins.options == told
