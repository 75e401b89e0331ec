"""The events and effects of the machine that sees hangs (`standstill`)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from rendezvous.membership.hang_evidence import Looks
from rendezvous.protocol.hang_messages import Evidence, Progress, Stack
from rendezvous.protocol.progress_page import Phase

OnHang = Literal["recover", "tell", "off"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Members:
    """The ranks that have to move: live ones whose script has not ended, by their replica's slot.

    Waits of generations before `generation` are over.
    """

    slots: Mapping[int, int]
    protected: bool
    generation: int = 0


@dataclass(frozen=True, slots=True)
class Stepped:
    """A step is over."""

    step: int


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed."""


Event = Members | Stepped | Progress | Evidence | Stack | Tick


@dataclass(frozen=True, slots=True, kw_only=True)
class LookAt:
    """Look at these ranks."""

    hang: int
    look: int
    ranks: tuple[int, ...]
    stacks: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspected:
    """This rank keeps others waiting beyond the limit of its phase."""

    hang: int
    rank: int
    waiting: tuple[int, ...]
    lag_s: float
    phase: Phase
    step: int
    words: str
    limit_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleared:
    """A suspect came after all."""

    hang: int
    rank: int
    lag_s: float
    phase: Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Condemned:
    """A rank will not come: its replica is to go on without it."""

    hang: int
    rank: int
    lag_s: float
    phase: Phase
    step: int
    what: str  # that others wait for
    words: str  # where it stands
    proof: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stuck:
    """All have joined an operation that does not end. `meet`: members shall meet anew, else the
    job stops; unless `acts`, nothing is done.
    """

    what: str
    lag_s: float
    meet: bool
    acts: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Parted:
    """Ranks wait for each other in different operations: (rank, operation, where)."""

    hang: int
    places: tuple[tuple[int, str, str], ...]
    lag_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AllQuiet:
    """Nobody moves, and nobody waits for others. `over`: longer than the user allows; `started`: a
    rank has come to its first loop or forward.
    """

    hang: int
    quiet_s: float
    phase: Phase
    step: int
    words: str
    over: bool
    started: bool = True


Effect = LookAt | Suspected | Cleared | Condemned | Stuck | Parted | AllQuiet


@dataclass(slots=True)
class Still:
    """A rank that stands still, as of its last mark."""

    mark: Progress
    since: float
    looks: Looks = field(default_factory=Looks)
    blamed_since: float | None = None  # it is waited for, and stands still
    hang: int = 0  # the suspicion, once it is looked at
    asked: int = 0  # the number of the last look that was asked for
    asked_stacks: int = 0  # so many of them are to prove something
    asked_at: float = float("-inf")
    said: bool = False

    def excuse(self, blind_s: float) -> None:
        """For so long nobody has seen whether it moved: that time does not count."""
        self.since += blind_s
        if self.blamed_since is not None:
            self.blamed_since += blind_s

    @property
    def phase(self) -> Phase:
        return Phase(self.mark.phase)
