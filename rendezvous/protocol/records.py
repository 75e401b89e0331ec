"""Lines of the journal as values, before anything is written."""

from collections.abc import Mapping
from dataclasses import dataclass, field

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]

PART = "part"
"""The field of a record that says no more than one node knows."""

INHERITED = "inherited"
"""The field of a part that a coordinator tells: its predecessor may have told the same before."""


@dataclass(frozen=True, slots=True)
class Record:
    """Append a line to the journal; `event` is a name of the table in `journal`."""

    event: str
    reason: str
    fields: Mapping[str, Json] = field(default_factory=dict)


def notice(words: str) -> Record:
    """A line that a person should read once, and no rank has said."""
    return Record("notice.give", words, {"rank": -1})
