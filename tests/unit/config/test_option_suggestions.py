"""The option that was meant by a mistyped one."""

import pytest

from recoverrun.config.option_suggestions import meant

OPTIONS = ("--nnodes", "--nproc-per-node", "--max-restarts")


@pytest.mark.parametrize(
    ("name", "found"),
    [
        pytest.param("--max-x", "--max-restarts", id="enough-but-for-the-last-letter"),
        pytest.param("--nnode-s", "--nnodes", id="looks-like-it"),
        pytest.param("--hlep", "--help", id="of-the-others"),
        pytest.param("--nx", "", id="two-begin-like-this"),
        pytest.param("--zzz", "", id="like-nothing"),
    ],
)
def test_the_nearest_name_is_meant(name: str, found: str) -> None:
    assert meant(name, OPTIONS, ("--help",)) == found
