"""Histories that are written down: what chance does not come to in thousands of seeds.

Two nodes with a rank each, nothing is lost on the way, a snapshot every four steps. A step takes
0.1 s and the first one begins at 0.2 s.
"""

from dataclasses import dataclass

from rendezvous.snapshots import holdings, restore_plan
from tests.sim.mutants import Mutant
from tests.sim.snapshots.plan import Fault, Plan


@dataclass(frozen=True, slots=True)
class Story:
    """A bug, and the history that notices it. Its seed decides how long messages travel."""

    bug: Mutant
    faults: tuple[Fault, ...]

    @property
    def plan(self) -> Plan:
        return Plan(
            seed=self.bug.seed, nodes=2, nproc=1, every=4, parity=0, step_s=0.1, faults=self.faults
        )


STORIES = (
    # Rank 0 misses step 8 in the first attempt and rank 1 in the second: each has one of the two.
    Story(
        Mutant(
            "a snapshot is known by its step alone as a way back is planned", restore_plan,
            "sources", "h[:3] == (*of, world)", "h[1:3] == (of.step, world)", "SNAP-1", 0,
        ),
        (
            Fault(kind="stall", at_s=0.95, target=0, for_s=0.15),
            Fault(kind="all", at_s=1.25),
            Fault(kind="stall", at_s=1.9, target=1, for_s=0.2),
            Fault(kind="all", at_s=2.2),
        ),
    ),
    # A node is lost, and all begin from line 1; rank 1 misses steps 4 and 8 there, and has two
    # snapshots of step 12 then.
    Story(
        Mutant(
            "a keeper finds a snapshot by its step alone", holdings, "KeeperHoldings.find",
            "bay.content == wanted",
            "bay.content is not None and bay.content.step == wanted.step", "SNAP-3", 0,
        ),
        (
            Fault(kind="node", at_s=1.65, target=0),
            Fault(kind="stall", at_s=1.8, target=1, for_s=1.25),
            Fault(kind="all", at_s=3.45),
        ),
    ),
)  # fmt: skip
