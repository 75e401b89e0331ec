"""Loops that run on and on without training: they are not looked at for ever.

Until the first microbatch any loop whose body names something that may train (`counter.update(x)`,
where the script has an `update` of its own) may be the one that does. Looking around at the top of
each iteration takes some 15 to 50 us, so that a script that goes through millions of lines before
it trains would seem to hang. In an iteration of a loop that is known to train, a loop within need
not be looked at for long: a backward there is executed again from the outer one.
"""

BOUND = 50_000
"""Iterations of a loop, before any microbatch, until it is taken for one that does not train."""

WITHIN = 64
"""Iterations of a loop within an iteration of one that trains, until it is taken for idle."""


class IdleLoops:
    """The number of times that each loop has come to its top before it first trained."""

    def __init__(self) -> None:
        self._tops: dict[str, int] = {}

    def passes(self, loop_id: str, *, within: bool = False) -> bool:
        """An iteration of the loop begins, `within` one of a loop that trains or not; True if it is
        one too many to be looked at.
        """
        self._tops[loop_id] = self._tops.get(loop_id, 0) + 1
        return self._tops[loop_id] > (WITHIN if within else BOUND)

    def why(self, loop_id: str) -> str:
        """The reason why no microbatch was seen in the loop; "" if it is not for this."""
        if self._tops.get(loop_id, 0) <= BOUND:
            return ""
        return f"the loop at {loop_id} went round {BOUND:,} times before it first trained"
