"""What a worker leaves is whole, whenever it was killed."""

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from rendezvous import remains


def test_the_last_two_payloads_are_there_oldest_first(tmp_path: Path) -> None:
    writer = remains.Writer(str(tmp_path / "context"))
    writer.write(b"one")
    assert remains.read(str(tmp_path / "context")) == (b"one",)

    writer.write(b"two")
    writer.write(b"three")

    assert remains.read(str(tmp_path / "context")) == (b"two", b"three")


def test_nothing_written_and_nothing_there_are_both_empty(tmp_path: Path) -> None:
    remains.Writer(str(tmp_path / "context")).close()

    assert remains.read(str(tmp_path / "context")) == ()
    assert remains.read(str(tmp_path / "nothing")) == ()


def test_the_file_grows_with_the_payload_and_keeps_the_one_before(tmp_path: Path) -> None:
    writer = remains.Writer(str(tmp_path / "context"))
    large = bytes(range(256)) * 1000

    writer.write(b"small")
    writer.write(large)

    assert remains.read(str(tmp_path / "context")) == (b"small", large)


def test_a_payload_beyond_the_limit_changes_nothing(tmp_path: Path) -> None:
    writer = remains.Writer(str(tmp_path / "context"))
    writer.write(b"before")

    assert not writer.write(bytes(remains.MOST_BYTES + 1))

    assert remains.read(str(tmp_path / "context")) == (b"before",)


def test_the_mapping_needs_no_close_to_be_seen(tmp_path: Path) -> None:
    path = str(tmp_path / "context")
    writer = remains.Writer(path)

    for number in range(100):
        writer.write(b"%d" % number)
        assert remains.read(path)[-1] == b"%d" % number


@given(st.integers(0, 200), st.binary(min_size=1, max_size=40))
def test_a_torn_write_leaves_the_payload_before(cut: int, new: bytes) -> None:
    # The writer dies after `cut` bytes of what it copies: the payload first, then the header.
    half = remains.HEADER.size + 64
    size = 2 * half + remains.MARKS_BYTES
    before, after = bytearray(size), bytearray(size)
    for content, payloads in ((before, (b"old", b"last")), (after, (b"old", b"last", new))):
        for sequence, payload in enumerate(payloads, 1):
            _put(content, half, sequence, payload)
    start = (3 % 2) * half
    order = [*range(start + remains.HEADER.size, start + half), *range(start, start + 24)]
    torn = bytearray(before)
    for place in order[:cut]:
        torn[place] = after[place]

    found = remains.parse(bytes(torn))

    assert b"last" in found
    assert set(found) <= {b"old", b"last", new}


def _put(content: bytearray, half: int, sequence: int, payload: bytes) -> None:
    import zlib

    start = (sequence % 2) * half
    header = remains.HEADER.pack(sequence, len(payload), zlib.crc32(payload))
    content[start : start + 24] = header
    content[start + 24 : start + 24 + len(payload)] = payload


def test_marks_are_read_by_microbatch_and_the_newest_word_of_each_counts(tmp_path: Path) -> None:
    path = str(tmp_path / "context")
    writer = remains.Writer(path)
    writer.mark(3, 0, 11, 12)
    writer.mark(3, 1, 21, 0)
    writer.mark(3, 1, 21, 22)
    writer.write(bytes(range(256)) * 1000)  # the file grows, and keeps them

    marks = remains.parse_marks(remains.read_marks(path))

    assert marks == {(3, 0): (11, 12), (3, 1): (21, 22)}


def test_only_the_latest_marks_are_kept(tmp_path: Path) -> None:
    path = str(tmp_path / "context")
    writer = remains.Writer(path)
    for step in range(2 * remains.MARKS):
        writer.mark(step, 0, step, step)

    marks = remains.parse_marks(remains.read_marks(path))

    assert sorted(marks) == [(step, 0) for step in range(remains.MARKS, 2 * remains.MARKS)]


def test_marks_that_are_taken_back_are_not_read_and_may_be_given_again(tmp_path: Path) -> None:
    path = str(tmp_path / "context")
    writer = remains.Writer(path)
    for step in (2, 3):
        for index in range(2):
            writer.mark(step, index, 10 * step, index)

    writer.unmark(3)
    without = remains.parse_marks(remains.read_marks(path))
    writer.mark(3, 0, 30, 7)

    assert without == {(2, 0): (20, 0), (2, 1): (20, 1)}
    assert remains.parse_marks(remains.read_marks(path)) == {**without, (3, 0): (30, 7)}


def test_no_marks_are_read_where_none_were_written(tmp_path: Path) -> None:
    remains.Writer(str(tmp_path / "context")).close()

    assert remains.parse_marks(remains.read_marks(str(tmp_path / "context"))) == {}
    assert remains.read_marks(str(tmp_path / "nothing")) == b""


@given(st.integers(0, remains.MARK.size))
def test_a_torn_mark_is_not_believed(cut: int) -> None:
    old, new = (_ring_of(digest) for digest in (1, 2**31 + 7))

    found = remains.parse_marks(new[:cut] + old[cut:])

    assert found in ({}, {(3, 1): (1, 1)}, {(3, 1): (2**31 + 7, 2**31 + 7)})


def _ring_of(digest: int) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        writer = remains.Writer(f"{folder}/context")
        writer.mark(3, 1, digest, digest)
        ring = remains.read_marks(f"{folder}/context")
    return ring[remains.MARK.size : 2 * remains.MARK.size]  # where the first one lies


@given(st.binary(max_size=300))
def test_garbage_is_never_an_error(content: bytes) -> None:
    remains.parse(content)
    remains.parse_marks(content)
