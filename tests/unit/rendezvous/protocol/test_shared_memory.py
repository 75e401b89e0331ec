"""Shared memory of a worker is whole, whenever it was killed."""

import os
import resource
import shutil
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from rendezvous.protocol import shared_memory


def test_the_last_two_payloads_are_there_oldest_first(tmp_path: Path) -> None:
    writer = shared_memory.Writer(str(tmp_path / "context"))
    writer.write(b"one")
    assert shared_memory.read(str(tmp_path / "context")) == (b"one",)

    writer.write(b"two")
    writer.write(b"three")

    assert shared_memory.read(str(tmp_path / "context")) == (b"two", b"three")


def test_nothing_written_and_nothing_there_are_both_empty(tmp_path: Path) -> None:
    shared_memory.Writer(str(tmp_path / "context")).close()

    assert shared_memory.read(str(tmp_path / "context")) == ()
    assert shared_memory.read(str(tmp_path / "nothing")) == ()


def test_the_file_grows_with_the_payload_and_keeps_the_one_before(tmp_path: Path) -> None:
    writer = shared_memory.Writer(str(tmp_path / "context"))
    large = bytes(range(256)) * 1000

    writer.write(b"small")
    writer.write(large)

    assert shared_memory.read(str(tmp_path / "context")) == (b"small", large)


def test_a_payload_beyond_the_limit_changes_nothing(tmp_path: Path) -> None:
    writer = shared_memory.Writer(str(tmp_path / "context"))
    writer.write(b"before")

    assert not writer.write(bytes(shared_memory.MOST_BYTES + 1))

    assert shared_memory.read(str(tmp_path / "context")) == (b"before",)


def test_a_file_that_cannot_grow_keeps_what_it_has_and_grows_later(tmp_path: Path) -> None:
    path = str(tmp_path / "context")
    writer = shared_memory.Writer(path)
    writer.write(b"before")
    writer.mark(3, 0, 7, 8)
    large = bytes(1 << 17)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))  # as a full file system would
    try:
        grown = writer.write(large)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert not grown and os.listdir(tmp_path) == ["context"]
    assert shared_memory.read(path) == (b"before",)
    assert writer.write(large)
    assert shared_memory.read(path) == (b"before", large)
    assert shared_memory.parse_marks(shared_memory.read_marks(path)) == {(3, 0): (7, 8)}


def test_the_mapping_needs_no_close_to_be_seen(tmp_path: Path) -> None:
    path = str(tmp_path / "context")
    writer = shared_memory.Writer(path)

    for number in range(100):
        writer.write(b"%d" % number)
        assert shared_memory.read(path)[-1] == b"%d" % number


@given(st.integers(0, 200), st.binary(min_size=1, max_size=40))
def test_a_torn_write_leaves_the_payload_before(cut: int, new: bytes) -> None:
    # The writer dies after `cut` bytes of what it copies: the payload first, then the header.
    half = shared_memory.HEADER.size + 64
    size = 2 * half + shared_memory.TAIL_BYTES
    before, after = bytearray(size), bytearray(size)
    for content, payloads in ((before, (b"old", b"last")), (after, (b"old", b"last", new))):
        for sequence, payload in enumerate(payloads, 1):
            _put(content, half, sequence, payload)
    start = (3 % 2) * half
    order = [*range(start + shared_memory.HEADER.size, start + half), *range(start, start + 24)]
    torn = bytearray(before)
    for place in order[:cut]:
        torn[place] = after[place]

    found = shared_memory.parse(bytes(torn))

    assert b"last" in found
    assert set(found) <= {b"old", b"last", new}


def _put(content: bytearray, half: int, sequence: int, payload: bytes) -> None:
    import zlib

    start = (sequence % 2) * half
    header = shared_memory.HEADER.pack(sequence, len(payload), zlib.crc32(payload))
    content[start : start + 24] = header
    content[start + 24 : start + 24 + len(payload)] = payload


def test_marks_are_read_by_microbatch_and_the_newest_word_of_each_counts(tmp_path: Path) -> None:
    path = str(tmp_path / "context")
    writer = shared_memory.Writer(path)
    writer.mark(3, 0, 11, 12)
    writer.mark(3, 1, 21, 0)
    writer.mark(3, 1, 21, 22)
    writer.write(bytes(range(256)) * 1000)  # the file grows, and keeps them

    marks = shared_memory.parse_marks(shared_memory.read_marks(path))

    assert marks == {(3, 0): (11, 12), (3, 1): (21, 22)}


def test_only_the_latest_marks_are_kept(tmp_path: Path) -> None:
    path = str(tmp_path / "context")
    writer = shared_memory.Writer(path)
    for step in range(2 * shared_memory.MARKS):
        writer.mark(step, 0, step, step)

    marks = shared_memory.parse_marks(shared_memory.read_marks(path))

    assert sorted(marks) == [
        (step, 0) for step in range(shared_memory.MARKS, 2 * shared_memory.MARKS)
    ]


def test_marks_that_are_taken_back_are_not_read_and_may_be_given_again(tmp_path: Path) -> None:
    path = str(tmp_path / "context")
    writer = shared_memory.Writer(path)
    for step in (2, 3):
        for index in range(2):
            writer.mark(step, index, 10 * step, index)

    writer.unmark(3)
    without = shared_memory.parse_marks(shared_memory.read_marks(path))
    writer.mark(3, 0, 30, 7)

    assert without == {(2, 0): (20, 0), (2, 1): (20, 1)}
    assert shared_memory.parse_marks(shared_memory.read_marks(path)) == {**without, (3, 0): (30, 7)}


def test_no_marks_are_read_where_none_were_written(tmp_path: Path) -> None:
    shared_memory.Writer(str(tmp_path / "context")).close()

    assert shared_memory.parse_marks(shared_memory.read_marks(str(tmp_path / "context"))) == {}
    assert shared_memory.read_marks(str(tmp_path / "nothing")) == b""


@given(st.integers(0, shared_memory.MARK.size))
def test_a_torn_mark_is_not_believed(cut: int) -> None:
    old, new = (_ring_of(digest) for digest in (1, 2**31 + 7))

    found = shared_memory.parse_marks(new[:cut] + old[cut:])

    assert found in ({}, {(3, 1): (1, 1)}, {(3, 1): (2**31 + 7, 2**31 + 7)})


def _ring_of(digest: int) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        writer = shared_memory.Writer(f"{folder}/context")
        writer.mark(3, 1, digest, digest)
        ring = shared_memory.read_marks(f"{folder}/context")
    return ring[shared_memory.MARK.size : 2 * shared_memory.MARK.size]  # where the first one lies


@given(st.binary(max_size=300))
def test_garbage_is_never_an_error(content: bytes) -> None:
    shared_memory.parse(content)
    shared_memory.parse_marks(content)


def test_a_file_that_somebody_has_removed_is_made_again(tmp_path: Path) -> None:
    folder = tmp_path / "cleared"
    folder.mkdir()
    writer = shared_memory.Writer(str(folder / "context"))
    writer.write(b"one")
    writer.mark(3, 0, 7, 8)
    marks = shared_memory.read_marks(str(folder / "context"))
    shutil.rmtree(folder)

    assert writer.write(b"two"), "it stays where nobody finds it"
    folder.mkdir()
    assert writer.write(b"three")

    assert shared_memory.read(str(folder / "context")) == (b"two", b"three")
    assert shared_memory.read_marks(str(folder / "context")) == marks
