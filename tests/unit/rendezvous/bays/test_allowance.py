"""The share of a node's memory for snapshots, as users write it."""

import re

import pytest

from rendezvous.bays.allowance import Allowance, read

GIB = 1 << 30


@pytest.mark.parametrize(
    ("text", "free", "allowed"),
    [
        ("40%", 10 * GIB, 4 * GIB),
        ("100%", 10 * GIB, 10 * GIB),
        ("3G", 10 * GIB, 3 * GIB),
        ("1.5GiB", 10 * GIB, 3 * GIB // 2),
        ("20GB", 10 * GIB, 10 * GIB),
        ("4096", 10 * GIB, 4096),
    ],
)
def test_what_is_meant(text: str, free: int, allowed: int) -> None:
    assert read(text).bytes_of(free) == allowed
    assert read(read(text).written()) == read(text)


@pytest.mark.parametrize("text", ["", "0", "0%", "101%", "-1G", "40 %", "much", "1X", "G", "1e9"])
def test_what_cannot_be_meant(text: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        read(text)


def test_by_default_it_is_less_than_half() -> None:
    assert Allowance().bytes_of(10 * GIB) == 4 * GIB
