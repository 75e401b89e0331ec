"""Planted bugs: each takes away one decision that keeps runs true, and a generated script shows it.

Each `old` becomes `new` in the text of `module` in all processes of a run. A mutant whose text has
gone is an error, not a test that passes for nothing.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tests.hunt.plan import Plan, planned

FOLDER = Path(__file__).parent / "planted"

SIMPLE = replace(
    planned(0), world=2, place="permutation", stream="none", when="at once", reader="nothing",
    reads_from=0, accumulation="single", judge="nobody", wrapper="ddp", shape="module",
    loop="flat", optimizer="sgd", schedule=False, books="kept open", ranks_seed=True, victim=1,
    step=4, phase="forward", odd="",
)  # fmt: skip

LATE = """\
            if strategy.synced:
                if not hasattr(self, "late"):
                    from torch.optim.optimizer import register_optimizer_step_pre_hook as hook

                    hook(lambda *_: self.late.pop()() if self.late else None)
                self.late = [self.settle]
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """`choices` are those of the script that shows it, without a loss or with one."""

    name: str
    module: str
    old: str
    new: str
    choices: Mapping[str, object]
    lossy: bool
    kind: str = "finding"  # what the verdict becomes
    more: tuple[tuple[str, str], ...] = ()  # what else is changed: decisions may back each other
    elsewhere: tuple[tuple[str, str, str], ...] = ()  # likewise, in another module: its name first

    @property
    def plan(self) -> Plan:
        """The simplest script with these choices; rank 1 dies if one does."""
        return replace(SIMPLE, **self.choices)  # type: ignore[arg-type]

    @property
    def edits(self) -> Mapping[str, list[tuple[str, str]]]:
        """The changes of each module, by its name."""
        edits = {self.module: [(self.old, self.new), *self.more]}
        for module, old, new in self.elsewhere:
            edits.setdefault(module, []).append((old, new))
        return edits

    @property
    def environment(self) -> Mapping[str, str]:
        """With which the processes of a run have it."""
        return {"PYTHONPATH": str(FOLDER), "HUNT_MUTANT": json.dumps(self.edits)}


MUTANTS = (
    Mutant(
        name="gradients are settled as the optimizer steps",
        module="recoverrun.worker.step.driver",
        old="            if strategy.synced:\n                self.settle()\n",
        new=LATE,
        choices={"reader": "rate", "reads_from": 4},
        lossy=False,
    ),
    Mutant(
        name="proofs are made in the process itself",
        module="recoverrun.worker.verification.forked_child",
        old="    streams, parent = read_streams(), os.getpid()\n",
        new="    return work(answering)\n    streams, parent = read_streams(), os.getpid()\n",
        choices={"place": "iterator"},
        lossy=False,
    ),
    Mutant(
        name="assumed starts are believed",
        module="recoverrun.worker.make_up.make_up",
        old="if assumed and not self._positions.starts_there(",
        new="if False and not self._positions.starts_there(",
        choices={
            "world": 3,
            "accumulation": "no-sync-3",
            "place": "list",
            "stream": "data-decides",
            "when": "from 5",
            "step": 5,
        },  # fmt: skip
        lossy=True,
    ),
    Mutant(
        name="nobody looks at what was noted, of lost ranks or of oneself",
        module="recoverrun.worker.make_up.microbatch_maker",
        old="        known = self._left.marks.get(made.rank, {}).get((step, made.identity[1]))\n",
        new="        known = None\n",
        choices={"stream": "numpy-spawned", "when": "from 5", "step": 7, "phase": "backward"},
        lossy=True,
        more=(
            (
                "self.doubts.check_last_committed(made.rank, step, marks)",
                "pass",
            ),
            ("            self.doubts.check_own_microbatch(made.rank)", "            pass"),
        ),
        elsewhere=(
            (
                "recoverrun.worker.make_up.make_up",
                "            whole = AUDIT if self._executors and self._audits.due else WHOLE",
                "            whole = WHOLE",
            ),
        ),
    ),
    Mutant(
        name="generators are not known by their constructors",
        module="recoverrun.worker.rng.registry",
        old="        place = _place(frame)\n",
        new="        place = None\n",
        choices={"stream": "torch-closure"},
        lossy=True,
        kind="told",
    ),
    Mutant(
        name="ranks do not compare how many numbers they draw",
        module="recoverrun.worker.verification.drift_check",
        old='zlib.crc32(f"{name} {count}".encode()) for name',
        new="0 for name",
        choices={
            "place": "loader",
            "loop": "for",
            "stream": "torch",
            "judge": "unequal",
        },
        lossy=True,
    ),
    Mutant(
        name="nobody tells of a figure over the survivors",
        module="ft_collectives.process_group.survivors",
        old="            self.policy.on_partial(signature.call, len(among.members), self.size)\n",
        new="            pass\n",
        choices={"world": 3, "judge": "steering"},
        lossy=True,
    ),
    Mutant(
        name="a microbatch may end any number of ranks",
        module="recoverrun.worker.make_up.deadly_microbatches",
        old="        if len(died) >= MOST:\n",
        new="        if False:\n",
        choices={"world": 3, "odd": "poison", "phase": ""},
        lossy=True,
    ),
)
