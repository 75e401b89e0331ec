"""The order of events in one optimizer step on one rank, as a pure machine.

A step is a transaction: COMPUTE, REDUCE, VOTE, APPLY (docs/recovery.md). The machine knows what is
in this rank's accumulators, in which generation all buckets were reduced, and when the step may be
applied. After a loss it decides nothing alone: it reports what it holds and waits for the
coordinator's decision, once in each generation.

Theory of operation. Two threads feed it: the script's thread (microbatches, the commit point,
finished reductions and votes) and the control thread (views, decisions, contexts). A view takes
effect at once, so a vote or a reduction of an older generation that finishes later changes nothing
(INV-5): what this rank then reports is frozen. The vote is an all-reduce over all live ranks, and a
rank enters it only if it holds every bucket. So a rank that completes it knows that all members
hold the step, and a survivor that did not complete it can use its held buckets whenever all
survivors hold theirs: `rendezvous.coordinator.coordinator` applies that rule.

The ranks of a replica compute in lockstep, and a rank cannot leave what it has begun to re-execute.
A view may reach one rank just before such a start and its shard mate just after it: reports name
what is `begun`, and the coordinator lets the others join ("level") before it decides.

A lost replica comes back between two steps. The vote also counts who knows of it. If all members
do, all stop at the top of the next step (`held`), and a view begins there that has the newcomers:
nothing of that step is done anywhere, so its plan is the standing one, and nobody reports.

In a step without losses the machine waits for no message.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal, assert_never

from ft_collectives.step.step_events import (
    Accumulated,
    Apply,
    Break,
    Compare,
    Compared,
    Compute,
    Conceded,
    Decided,
    Discarded,
    Effect,
    Ended,
    Event,
    Invited,
    Reduce,
    Reduced,
    Send,
    Settled,
    Tick,
    Viewed,
    Vote,
    Voted,
)
from ft_collectives.step.uneven_step import effects_of
from rendezvous.protocol.arrival_messages import Held
from rendezvous.protocol.layout import FIRST_GENERATION, Layout
from rendezvous.protocol.messages import Committed, Decision, Phase, Report
from rendezvous.protocol.quota import standing_quota, standing_shares
from rendezvous.protocol.views import Identity, View

RESEND_AFTER_S = 0.5
"""An unanswered report is sent again: messages may be lost, and totals may be repeated."""


State = Literal["open", "asking", "computing", "reducing", "voting", "ended"]


class StepMachine:
    """One rank's side of every step. `rank` is global; `view` has the first members."""

    def __init__(self, *, rank: int, layout: Layout, view: View) -> None:
        self.rank = rank
        self.layout = layout
        self.slot = layout.slot(rank)
        self.view = view if view.live else _with_slots(view, layout)
        self.step_index = 0
        self.planned_in = FIRST_GENERATION  # the generation whose members the step's plan is for
        self.microbatches = 0
        self.done: list[Identity] = []
        self.begun: tuple[Identity, ...] = ()  # being re-executed now
        self.joined: tuple[Identity, ...] = ()  # to re-execute because shard mates have begun to
        self.plan: tuple[Identity, ...] | None = None  # extras decided for this step, if any were
        self.usual = self.view.live  # members as the step began: what they compute is no extra work
        self.targets: Mapping[int, tuple[Identity, ...]] = {}  # of all replicas, decided with it
        self.suspects: tuple[Identity, ...] = ()  # decided with it: what may end who executes it
        self.reduced_in = 0
        self.state: State = "open"
        self.invited_in = 0  # the generation in which lost ranks were said to be ready
        self.hold_at = -1  # the step at whose top all members stop, as their vote has agreed
        self._report_at = float("inf")
        self._now = 0.0

    @classmethod
    def arrived(
        cls, *, rank: int, layout: Layout, view: View, step: int, microbatches: int
    ) -> "StepMachine":
        """Return the machine of a rank that joins by `view`, at the top of transaction `step`."""
        machine = cls(rank=rank, layout=layout, view=view)
        assert rank in view.joined and view.from_step == step, f"INV-9: {view} at step {step}"
        machine.step_index, machine.microbatches = step, microbatches
        machine.planned_in = view.generation
        return machine

    # --------------------------------------------------------------------------- machine

    def step(self, event: Event, now: float) -> list[Effect]:
        """Take one event at monotonic time `now` (seconds); return what is to be done, in order."""
        self._now = now
        match event:
            case Viewed(view=view):
                effects = self._view(view)
            case Decided(decision=decision):
                effects = self._decide(decision)
            case Invited(generation=generation):
                self.invited_in = max(generation, self.invited_in)
                effects = []
            case Accumulated(identity=identity):
                effects = self._accumulate(identity)
            case Settled(microbatches=microbatches):
                effects = self._settle(microbatches)
            case Discarded():
                effects = self._discard()
            case Reduced(generation=generation):
                effects = self._reduce(generation)
            case Voted():
                effects = self._vote(event)
            case Compared() | Conceded() if (
                event.generation != self.view.generation or self.state != "voting"
            ):
                effects = []
            case Compared():
                whole, shards = len(self.view.live) == len(self.layout.slots), self.layout.shards
                effects = effects_of(self.rank, self.step_index, event, whole=whole, shards=shards)
            case Conceded(total=total):
                effects = self._apply(stay_stale=False, total=total)
            case Ended():
                self.state = "ended"
                effects = []
            case Tick():
                effects = self._tick()
            case _:
                assert_never(event)
        self.check()
        return effects

    def deadline(self) -> float | None:
        """Return the monotonic time (seconds) at which a `Tick` is needed, or None."""
        return None if self._report_at == float("inf") else self._report_at

    def check(self) -> None:
        """Assert the invariants that hold between any two events."""
        assert len(set(self.done)) == len(self.done), f"INV-1: computed twice: {self.done}"
        assert self.planned_in <= self.view.generation, f"INV-2: plan of {self.planned_in}"
        assert not set(self.begun) & set(self.done), f"INV-1: begun again: {self.begun}"
        assert bool(self.begun) == (self.state == "computing"), f"{self.state} with {self.begun}"
        assert self.reduced_in <= self.view.generation, f"INV-5: reduced in {self.reduced_in}"

    def snapshot(self) -> dict[str, object]:
        """Return its state, for the journal and the simulator."""
        return {
            "rank": self.rank,
            "step": self.step_index,
            "generation": self.view.generation,
            "planned_in": self.planned_in,
            "state": self.state,
            "done": tuple(self.done),
            "reduced_in": self.reduced_in,
            "hold_at": self.hold_at,
        }

    # --------------------------------------------------------------------------- what others need

    def extras(self) -> tuple[Identity, ...]:
        """Return the identities that this replica computes for lost slots in this step, so far."""
        if self.plan is not None:
            return self.plan
        if not self.microbatches:
            return ()
        quota = standing_quota(self.view.live, self.layout.slots, self.microbatches)
        return quota.get(self.slot, ())

    def shares(self) -> Mapping[int, tuple[Identity, ...]]:
        """Return all that each live replica computes of this step, by slot."""
        if self.plan is not None:
            return self.targets
        return standing_shares(self.view.live, self.layout.slots, self.microbatches)

    @property
    def plan_is_stale(self) -> bool:
        """True if a newer view has come than the plan is for: nothing may be reduced yet."""
        return self.planned_in != self.view.generation

    def held(self) -> Held | None:
        """Return what to say at the top of a step where this rank has to stop, None if it goes on.

        It is said again until a newer view comes.
        """
        if self.hold_at != self.step_index or self.state != "open" or self.done:
            return None
        return Held(rank=self.rank, generation=self.view.generation, step=self.step_index)

    def report(self) -> Report:
        """Return what this rank holds of the step, as a total."""
        phase: Phase
        if self.state == "ended":
            phase = "done"
        elif self.state in ("open", "computing"):
            phase = "compute"
        else:
            phase = "settle"
        return Report(
            rank=self.rank,
            generation=self.view.generation,
            step=self.step_index,
            phase=phase,
            microbatches=self.microbatches if phase == "settle" else 0,
            done=tuple(sorted(self.done)),
            begun=self.begun,
            reduced=self.reduced_in,
        )

    def reduced_by_torch(self, microbatches: int) -> list[Effect]:
        """The first transaction is over; in it torch reduced what all ranks had computed."""
        assert not self.step_index and self.state == "open", f"begun already: {self.snapshot()}"
        self.microbatches = microbatches
        self.done = [(self.slot, index) for index in range(microbatches)]
        _, *effects = self._apply(stay_stale=self.plan_is_stale)
        return effects

    # --------------------------------------------------------------------------- control side

    def _view(self, view: View) -> list[Effect]:
        if view.generation == self.view.generation and self.plan_is_stale:
            return [self._say()]  # said again: our report may have been lost
        if view.generation <= self.view.generation:
            return []
        self.view = view
        self.joined = ()
        self.hold_at = -1
        if view.joined:
            self._join_members()
            return []
        if self.state in ("reducing", "voting"):
            self.state = "asking"
        return [self._say()]

    def _join_members(self) -> None:
        """Others join. All stand at the top of the step: what they compute of it is planned."""
        fresh = self.state == "open" and not self.done
        assert fresh and self.view.from_step == self.step_index, (
            f"INV-9: others join in step {self.view.from_step}, and this is {self.snapshot()}"
        )
        self.planned_in = self.view.generation
        self.usual = self.view.live

    def _decide(self, decision: Decision) -> list[Effect]:
        stale = decision.generation != self.view.generation or decision.step != self.step_index
        if stale or self.state != "asking" or not self.plan_is_stale:
            return []
        self._report_at = float("inf")
        if decision.verdict == "commit":
            if self.reduced_in != decision.held:
                return [
                    _broken(
                        "INV-3",
                        f"told to commit the sums of generation {decision.held}, "
                        f"holds those of {self.reduced_in}",
                    )
                ]
            return self._apply(stay_stale=True)
        if decision.verdict == "level":
            self.joined = dict(decision.targets).get(self.slot, ())
            return self._advance()
        self.planned_in = self.view.generation
        self.reduced_in = 0
        self.targets, self.suspects = dict(decision.targets), decision.suspects
        self.plan = self.targets.get(self.slot, ())
        return self._advance()

    def _tick(self) -> list[Effect]:
        if self._now < self._report_at:
            return []
        if self.state != "asking":
            self._report_at = float("inf")
            return []
        return [self._say()]

    def _say(self) -> Effect:
        waiting = self.state == "asking"
        self._report_at = self._now + RESEND_AFTER_S if waiting else float("inf")
        return Send(message=self.report())

    # --------------------------------------------------------------------------- script side

    def _accumulate(self, identity: Identity) -> list[Effect]:
        assert self.state in ("open", "computing"), f"microbatch {identity} while {self.state}"
        self.done.append(identity)
        self.begun = ()
        return self._advance() if self.state == "computing" else []

    def _settle(self, microbatches: int) -> list[Effect]:
        assert self.state == "open", f"commit point while {self.state}"
        self.microbatches = microbatches
        return self._advance()

    def _discard(self) -> list[Effect]:
        assert self.state == "open", f"gradients dropped while {self.state}"
        self.done = []
        return []

    def _advance(self) -> list[Effect]:
        """Continue from the commit point: compute what is missing, report, or reduce."""
        wanted = self.joined if self.plan_is_stale else self.extras()
        todo = tuple(identity for identity in wanted if identity not in self.done)
        if todo:
            self.state = "computing"
            self.begun = todo[:1]  # one at a time: a view may change the rest
            return [Compute(identities=self.begun)]
        if self.plan_is_stale:
            self.state = "asking"
            return [self._say()]
        self.state = "reducing"
        return [Reduce(generation=self.view.generation)]

    def _reduce(self, generation: int) -> list[Effect]:
        if generation != self.view.generation or self.state != "reducing":
            return []
        self.reduced_in = generation
        self.state = "voting"
        invited = self.invited_in == generation
        return [Vote(generation=generation, ballot=self._ballot(), invited=invited)]

    def _ballot(self) -> tuple[int, ...]:
        held = set(self.done)
        return tuple(
            int((slot, index) in held)
            for slot in self.layout.slots
            for index in range(self.microbatches)
        )

    def _vote(self, voted: Voted) -> list[Effect]:
        generation, counts = voted.generation, voted.counts
        if generation != self.view.generation or self.state != "voting":
            return []
        if voted.unequal:
            self.reduced_in = 0  # whoever differs may leave: the sum with its part must not count
            return [Compare(generation=generation)]
        if counts.count(self.layout.shards) != len(counts):
            return [
                _broken(
                    "INV-1",
                    f"step {self.step_index}: the vote counted {counts}, expected "
                    f"{self.layout.shards} for each of {len(counts)} microbatches",
                )
            ]
        if voted.invited == len(self.view.live_ranks):
            self.hold_at = self.step_index + 1
        return self._apply(stay_stale=False)

    def _apply(self, *, stay_stale: bool, total: int = 0) -> list[Effect]:
        """`total` is the number of microbatches in the sums, where replicas took unequally many."""
        applied = self.step_index
        usual = standing_shares(self.usual, self.layout.slots, self.microbatches)
        again = set(self.done) - set(usual.get(self.slot, ())) if self.plan is not None else set()
        committed = Committed(
            rank=self.rank,
            generation=self.view.generation,
            step=applied,
            done=tuple(sorted(self.done)),
            redone=tuple(sorted(again)),
            total=total or len(self.layout.slots) * self.microbatches,
            digest="",
        )
        self.step_index += 1
        self.done = []
        self.plan = None
        self.suspects = ()
        if not stay_stale:  # else what the next step takes belongs to the same loss
            self.usual = self.view.live
        self.joined = ()
        self.reduced_in = 0
        self.state = "open"
        effects: list[Effect] = [Apply(step=applied), Send(message=committed)]
        if stay_stale:  # the next step still needs this generation's decision: say where we are
            effects.append(self._say())
        return effects


def _with_slots(view: View, layout: Layout) -> View:
    """Return `view` with its live slots: it may be older than the topology."""
    live = tuple(
        slot for slot, ranks in enumerate(layout.replicas) if set(ranks) <= set(view.live_ranks)
    )
    return replace(view, live=live)


def _broken(invariant: str, reason: str) -> Break:
    return Break(invariant=invariant, reason=reason)
