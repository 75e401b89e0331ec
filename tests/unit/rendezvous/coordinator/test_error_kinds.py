"""Errors by what they tell of."""

import pytest

from rendezvous.coordinator.error_kinds import tells_of_a_disk


@pytest.mark.parametrize(
    ("error", "of_a_disk"),
    [
        ("OSError: [Errno 28] No space left on device", True),
        ("OSError: [Errno 30] Read-only file system: '/data/log'", True),
        ("OSError: [Errno 122] Disk quota exceeded", True),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'x'", False),
        ("ConnectionResetError: [Errno 104] Connection reset by peer", False),
        ("ValueError: 28", False),
        ("", False),
    ],
)
def test_a_file_system_that_is_full_or_broken_is_told_by_its_number(
    error: str, of_a_disk: bool
) -> None:
    assert tells_of_a_disk(error) is of_a_disk
