"""A limit for loops that do not train: after so many iterations they are not looked at any more.

Until the first microbatch any loop whose body names something that may train (`counter.update(x)`,
where the script has an `update` of its own) may be the one that does. Looking around at the top of
each iteration takes some 15 to 50 us, so that a script that goes through millions of lines before
it trains would seem to hang. In an iteration of a loop that is known to train, an inner loop need
not be looked at for long: a backward there is executed again from the outer loop.
"""

BEFORE_TRAINING = 50_000
"""So many iterations of a loop are looked at before the first microbatch."""

WITHIN_TRAINING = 64
"""So many are looked at of a loop within one iteration of a loop that is known to train."""


class IdleLoops:
    """Counts the iterations of each loop that has not trained yet."""

    def __init__(self) -> None:
        self._tops: dict[str, int] = {}

    def count(self, loop_id: str, *, within: bool = False) -> bool:
        """Count an iteration of the loop, `within` one of a loop that trains or not. True if it is
        beyond the limit, and need not be looked at.
        """
        self._tops[loop_id] = self._tops.get(loop_id, 0) + 1
        return self._tops[loop_id] > (WITHIN_TRAINING if within else BEFORE_TRAINING)

    def why(self, loop_id: str) -> str:
        """The reason why microbatches of the loop may have been missed; "" below the limit."""
        if self._tops.get(loop_id, 0) <= BEFORE_TRAINING:
            return ""
        return f"the loop at {loop_id} went round {BEFORE_TRAINING:,} times before it first trained"
