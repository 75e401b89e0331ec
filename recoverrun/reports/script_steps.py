"""The script's own count of its steps: how many there will be, and which were done before.

A run counts its steps anew in each attempt. What step of the script that is, workers say with the
promise of an attempt, where a loop over a range or a Trainer tells it. An attempt that has gone
back to a snapshot begins with the step of that. Where neither is known, no step counts as done
before.
"""

from dataclasses import dataclass, field

from rendezvous.journal.reader import Entry


@dataclass(slots=True)
class ScriptSteps:
    """The script's steps in one run; told of records in the order of the journal."""

    _attempt: int = 0
    _told: tuple[int, int] = (-1, -1)  # the script's number of its first step, steps from there on
    _first: int = -1  # step of this attempt, as the journal counts
    _newest: int = -1
    _ahead: int = 0  # by so much the script's number of a step is larger than the journal's
    _origin: int | None = None  # the script's number of the first step of all
    _own: bool = True  # all attempts before this one have told the script's numbers
    _before: int = -1  # the script's number of the newest step of all attempts before this one
    _past: int = 0  # steps that attempts before this one have done again
    _back: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Attempts that have gone back to a snapshot: to that of which attempt, and of which step."""
    _zeros: dict[int, int] = field(default_factory=dict)
    """By attempt: the script's number of what its snapshots count as step 0."""

    @property
    def of(self) -> int:
        """Steps that there will be, as this attempt counts them; -1 unknown."""
        return self._told[1] if self._started and self._told[1] > 0 else -1

    @property
    def done(self) -> int:
        """The script's steps that this run has done; one that was done twice is one."""
        newest = self._newest + self._ahead if self._started else -1
        return max(0, max(self._before, newest) + 1 - (self._origin or 0))

    @property
    def again(self) -> int:
        """Committed steps that had been done before."""
        last = min(self._newest + self._ahead, self._before)
        return self._past + (max(0, last - self._first - self._ahead + 1) if self._started else 0)

    @property
    def newest_again(self) -> bool:
        """True if the newest step is one of them."""
        return self._started and self._newest + self._ahead <= self._before

    @property
    def _started(self) -> bool:
        return self._first >= 0

    def hear(self, entry: Entry) -> None:
        """A record that is no step. The promise may come after the first step, or before."""
        match entry.event:
            case "snapshot.plan":
                back = entry.integer("of"), entry.integer("step")
                self._back[entry.integer("attempt")] = back
            case "promise.state" if self._told == (-1, -1):
                self._told = entry.integer("script_step"), entry.integer("script_steps")
                self._settle()

    def begin(self, attempt: int) -> None:
        """All processes are new."""
        if self._started:
            self._past = self.again
            self._before = max(self._before, self._newest + self._ahead)
            self._own &= self._told[0] >= 0 or self._attempt in self._back
        self._attempt, self._told = attempt, (-1, -1)
        self._first = self._newest = -1

    def commit(self, number: int) -> None:
        """A step of the present attempt is committed."""
        self._first = self._first if self._started else number
        self._newest = max(self._newest, number)
        self._settle()

    def _settle(self) -> None:
        """Learn which of the script's steps the first one is. An attempt counts from 0, whatever
        the first one is that is on record.
        """
        if not self._started:
            return
        place, back = self._told[0], self._back.get(self._attempt)
        if back is not None:
            zero = self._zeros.get(back[0], 0)
            self._ahead = zero + back[1]
        else:
            zero = self._ahead = place if place >= 0 and self._own else self._before + 1
        self._zeros[self._attempt] = zero
        self._origin = self._ahead if self._before < 0 else self._origin
