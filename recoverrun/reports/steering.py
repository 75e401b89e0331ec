"""The collective that steered the script after a loss, in words that are still true later."""

from recoverrun.reports.history import History

PAST = (
    (" is over ", " was over "),
    (" while others are lost", " while others were lost"),
    (" is made by ", " was made by "),
    (" is given what ", " was given what "),
)
"""Words of `rank0` and of the calls over survivors, and what they are once all ranks are back."""


def steered(facts: History) -> str:
    """The first one, "" for none. Once all ranks take part again it is of the past."""
    said = facts.steered
    if facts.views and len(facts.views[-1].live) == facts.world_size:
        for now, then in PAST:
            said = said.replace(now, then)
    return said
