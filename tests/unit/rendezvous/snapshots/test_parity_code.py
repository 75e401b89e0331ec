"""A column is rebuilt byte for byte, whichever was lost."""

import random
from itertools import combinations
from zlib import crc32

import pytest

from rendezvous.snapshots.parity_code import (
    PART_BYTES,
    ROWS,
    Xor,
    diagonal_parity,
    fastest,
    padded,
    rebuilt,
    row_check,
    row_parity,
    xor_of_integers,
)

SIZE = ROWS * 5

WAYS = pytest.mark.parametrize("xor", [xor_of_integers, fastest()], ids=["integers", "fastest"])


def _columns(many: int, seed: int = 3) -> list[bytes]:
    rng = random.Random(seed)
    return [rng.randbytes(SIZE) for _ in range(many)]


@WAYS
@pytest.mark.parametrize("many", range(1, ROWS + 1))
def test_any_column_is_rebuilt_from_rows(many: int, xor: Xor) -> None:
    columns = _columns(many)
    parity = {0: row_parity(columns, xor)}
    for lost in range(many):
        data = {n: one for n, one in enumerate(columns) if n != lost}

        assert rebuilt(data, parity, wanted=lost, columns=many, xor=xor) == columns[lost]


@WAYS
@pytest.mark.parametrize("many", range(1, ROWS + 1))
def test_any_two_columns_are_rebuilt_from_rows_and_diagonals(many: int, xor: Xor) -> None:
    columns = _columns(many)
    parity = [row_parity(columns, xor), diagonal_parity(columns, xor)]
    for gone in combinations(range(many + 2), 2):
        data = {n: one for n, one in enumerate(columns) if n not in gone}
        left = {kind: one for kind, one in enumerate(parity) if many + kind not in gone}
        for lost in (n for n in gone if n < many):
            found = rebuilt(data, left, wanted=lost, columns=many, xor=xor)

            assert found == columns[lost], gone


@pytest.mark.parametrize("seed", range(200))
def test_both_ways_to_sum_agree(seed: int) -> None:
    rng = random.Random(seed)
    size = rng.choice((0, 1, 7, 8, 4096, 12_345))
    parts = [rng.randbytes(size) for _ in range(rng.randint(1, 8))]

    assert fastest()(parts) == xor_of_integers(parts)


def test_what_was_not_sent_is_zeros() -> None:
    assert padded(b"ab", 4) == b"ab\0\0"
    assert padded(b"abcd", 4) == b"abcd"
    assert PART_BYTES % ROWS == 0


@WAYS
@pytest.mark.parametrize("many", range(1, 9))
def test_the_check_of_a_sum_follows_from_those_of_its_columns(many: int, xor: Xor) -> None:
    columns = _columns(many)
    checks = [crc32(column) for column in columns]

    assert row_check(checks, crc32(bytes(len(columns[0])))) == crc32(row_parity(columns, xor))
