"""A record is one line of JSON, and one that is not as the table says is a programming error."""

import json

import pytest

from rendezvous.journal.lines import TEXT_LIMIT, Lines, Missing, joined
from rendezvous.protocol.records import Record


def _commit(step: int) -> Record:
    numbers = dict.fromkeys(("generation", "redone", "microbatches", "total", "ms"), 1)
    return Record("step.commit", "", {"step": step, "quota": {}, **numbers})


def _note(rank: int = 0) -> Record:
    return Record("notice.give", "words", {"rank": rank})


def test_a_record_is_one_line_with_the_times_it_was_given() -> None:
    line = Lines("n1", 100.0).line(_note(3), mono=101.5, wall=1e9)

    assert line.data.endswith(b"\n")
    assert json.loads(line.data) == {
        "v": 2, "ts": 1e9, "mono": 1.5, "seq": 0, "node": "n1", "ev": "notice.give",
        "reason": "words", "rank": 3,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (Record("no.such", "", {}), "no such journal event"),
        (Record("run.end", "", {"exit_code": 0}), "root_rank"),
        (Record("notice.give", "", {"rank": 0, "seq": 1}), "belong to the line"),
    ],
)
def test_a_record_against_the_table_is_a_programming_error(record: Record, words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        Lines("n1", 0.0).line(record, mono=0.0, wall=0.0)


def test_text_is_clipped_and_numbers_that_json_lacks_become_null() -> None:
    fields = {"rank": 0, "ms": float("nan"), "bad": "\udcff"}
    record = Record("fault.hint", "x" * 100_000, fields)  # type: ignore[arg-type]

    read = json.loads(Lines("n1", 0.0).line(record, mono=1.0, wall=1.0).data)

    assert len(read["reason"]) == TEXT_LIMIT
    assert read["ms"] is None


def test_a_line_knows_the_step_that_it_belongs_to() -> None:
    lines = Lines("n1", 0.0)
    made = [
        lines.line(record, mono=0.0, wall=0.0)
        for record in (_note(), _commit(7), _note(), _commit(8))
    ]

    assert [line.step for line in made] == [-1, 7, 8, 8]


def test_what_is_missing_is_told_by_the_first_and_the_last_of_it() -> None:
    lines = Lines("n1", 0.0)
    one, two, three = (
        Missing.of(lines.line(_commit(step), mono=step, wall=10.0 + step)) for step in (4, 5, 6)
    )

    both = joined(joined(None, two), joined(one, three))

    assert (both.records, both.seq, both.step, both.since, both.wall) == (3, 2, 4, 14.0, 16.0)
    told = json.loads(lines.told(both, "why"))
    assert (told["ev"], told["seq"], told["records"], told["step"]) == ("journal.drop", 2, 3, 4)
