"""One line when the disk stops taking the journal, and one when it is over."""

from recoverrun.launcher.output.journal_news import JournalNews
from rendezvous.journal.lines import Missing


def _missing(records: int, step: int) -> Missing:
    return Missing(records=records, seq=step, step=step, since=float(step), mono=0.0, wall=0.0)


def test_a_disk_that_works_is_no_news() -> None:
    news = JournalNews()

    assert news.heard("", None, behind=3, now=1.0) == ""
    assert news.ended("", None, left=0, now=2.0) == ""


def test_a_trouble_is_told_once_and_its_end_when_all_is_written() -> None:
    news = JournalNews()
    said = [
        news.heard("the disk stalls for 1 s", None, behind=1, now=1.0),
        news.heard("the disk stalls for 2 s", None, behind=9, now=2.0),
        news.heard("", None, behind=5, now=3.0),
        news.heard("", None, behind=0, now=4.0),
        news.heard("", None, behind=0, now=5.0),
    ]

    assert said == [
        "! this node's journal cannot be written: the disk stalls for 1 s; training goes on",
        "",
        "",
        "! this node's journal is written again, after 3.0 s: nothing is missing",
        "",
    ]


def test_an_error_of_a_disk_that_was_only_slow_is_told_once() -> None:
    news = JournalNews()
    said = [
        news.heard("", _missing(1, 57), behind=9, now=1.0),
        news.heard("No space left on device", None, behind=9, now=2.0),
        news.heard("No space left on device", None, behind=9, now=3.0),
    ]

    assert said == [
        "! this node's journal cannot be written: the disk is too slow; training goes on",
        "! this node's journal cannot be written: No space left on device; training goes on",
        "",
    ]


def test_what_is_missing_is_counted_from_its_first_step() -> None:
    news = JournalNews()
    news.heard("full", _missing(1, 57), behind=0, now=1.0)
    news.heard("full", _missing(4, 58), behind=0, now=1.5)

    over = news.heard("", None, behind=0, now=3.0)

    assert over.endswith("after 2.0 s: 5 records missing, from step 57 on")


def test_a_second_trouble_counts_anew() -> None:
    news = JournalNews()
    news.heard("full", _missing(5, 57), behind=0, now=1.0)
    news.heard("", None, behind=0, now=2.0)
    news.heard("full", _missing(1, 90), behind=0, now=3.0)

    assert news.heard("", None, behind=0, now=4.0).endswith("1 record missing, from step 90 on")


def test_records_that_a_full_queue_refused_are_news_too() -> None:
    words = JournalNews().heard("", _missing(1, -1), behind=9, now=1.0)

    assert words.endswith("the disk is too slow; training goes on")


def test_the_end_says_what_the_journal_lacks() -> None:
    news = JournalNews()
    news.heard("No space left on device", _missing(1, 57), behind=0, now=1.0)

    words = news.ended("No space left on device", _missing(2, 58), left=0, now=2.0)

    assert words == (
        "! this node's journal is not whole: 3 records missing, from step 57 on "
        "(No space left on device)"
    )


def test_the_end_says_what_was_given_up_and_what_is_over() -> None:
    late, over = JournalNews(), JournalNews()
    late.heard("the disk stalls for 1 s", None, behind=1, now=1.0)
    over.heard("the disk stalls for 1 s", None, behind=1, now=1.0)

    assert late.ended("the disk stalls for 11 s", None, left=2, now=9.0).endswith(
        "2 records given up"
    )
    assert over.ended("", None, left=0, now=9.0).endswith("after 8.0 s: nothing is missing")


def test_that_the_journal_was_removed_is_told_once() -> None:
    news = JournalNews()

    assert "was removed" in news.removed()
    assert news.removed() == ""
