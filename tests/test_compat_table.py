"""docs/compatibility.md is a page as `make compat` writes it."""

from tests.compat.__main__ import PAGE, in_phases
from tests.compat.rows import ROWS
from tests.compat.table import Table


def test_the_page_is_what_its_own_rows_give() -> None:
    page = PAGE.read_text()
    rows, _, foot = page.rpartition("\n\n")

    again, _, _ = Table(page).page(row.name for row in ROWS).rpartition("\n\n")

    assert again == rows
    assert foot.startswith("Python ")


def test_what_came_of_three_kills_is_said_once_where_it_is_the_same() -> None:
    assert in_phases(["survives"] * 3) == "survives"
    assert (
        in_phases(["no such point", "survives", "survives"])
        == "forward: no such point; reduce: survives; vote: survives"
    )
