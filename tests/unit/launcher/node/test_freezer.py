"""A process that its control group has frozen, as the group tells it."""

from pathlib import Path

import pytest

from recoverrun.launcher.node.freezer import is_frozen

PID = 7


def machine(root: Path, groups: str, file: str, content: str) -> Path:
    for path, text in ((f"proc/{PID}/cgroup", groups), (f"sys/fs/cgroup/{file}", content)):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


V1 = ("5:cpu:/\n4:freezer:/jobs/a\n0::/\n", "freezer/jobs/a/freezer.state")
V2 = ("0::/jobs/a\n", "jobs/a/cgroup.events")
BOTH = ("4:freezer:/\n0::/jobs/a\n", "unified/jobs/a/cgroup.events")


@pytest.mark.parametrize(
    ("groups", "says", "frozen"),
    [
        (V1, "FROZEN\n", True),
        (V1, "THAWED\n", False),
        (V2, "populated 1\nfrozen 1\n", True),
        (V2, "populated 1\nfrozen 0\n", False),
        (BOTH, "frozen 1\n", True),
    ],
)
def test_a_group_says_whether_it_is_frozen(
    tmp_path: Path, groups: tuple[str, str], says: str, frozen: bool
) -> None:
    root = machine(tmp_path, *groups, says)

    assert is_frozen(PID, root) is frozen


def test_of_a_process_that_is_gone_nothing_is_said(tmp_path: Path) -> None:
    assert not is_frozen(PID, tmp_path)
