"""The collective of the script over survivors alone, in words that are still true later."""

from recoverrun.reports.history import History

NOW, THEN = " is over ", " was over "
LOST, WERE_LOST = " while others are lost", " while others were lost"


def steered(facts: History) -> str:
    """The first one, "" for none. Once all ranks take part again it is of the past."""
    complete = bool(facts.views) and len(facts.views[-1].live) == facts.world_size
    return facts.steered.replace(NOW, THEN).replace(LOST, WERE_LOST) if complete else facts.steered
