"""Trials, in a copy of this process, of what a rank crashed, failed or hung in.

A rank that ended by its own doing (a signal that a process brings upon itself, an exception of the
script, a wait without an end) may have done so because of the microbatch that it computed, and
whoever executes that next would follow it. So the coordinator names all that such a rank had begun
(`Decision.suspects`). A forked child, which can touch nothing of its parent, executes each of them
before this process does. If the child does not come to its end, nobody executes the microbatch.
Where a forward pass needs the shard mates, children of all of them meet, as in a proof.

A copy costs the microbatch once more, so what may have been killed from outside (SIGKILL, SIGTERM)
is not rehearsed: it is executed, and ends two ranks at most (`deadly_microbatches`).
"""

from collections import Counter
from collections.abc import Callable

from recoverrun.worker.errors import NotReplayable
from recoverrun.worker.replay.containment import GivenUp
from recoverrun.worker.replay.executor import Executor
from recoverrun.worker.step.time_limits import limit_s
from recoverrun.worker.step.worker_state import WorkerState
from recoverrun.worker.verification import forked_child, replica_children
from recoverrun.worker.verification.forked_child import Ask, Plain
from rendezvous.protocol.views import Identity

APART = "copies of the ranks of this replica, in which it would be tried, cannot meet"

MATES = "copies of this replica's ranks, in which it was tried, did not come to its end"

WHOLE_JOB = 0  # the generation of the store that lives as long as the job


class Rehearsal:
    """Attempts of suspect microbatches in a forked child."""

    def __init__(self, worker: WorkerState, executor: Executor) -> None:
        self._worker = worker
        self._executor = executor
        self._plan = -1, -1  # the step, and the generation for which it was dealt out
        self._times = Counter[Identity]()  # of this plan

    def is_wanted(self, identity: Identity) -> bool:
        """True if a rank may have ended by that microbatch of the present transaction. Shard mates
        are told the same.
        """
        return identity in self._worker.protection.machine.suspects

    def hold(self, identity: Identity, attempt: Callable[[], None]) -> str:
        """Do `attempt` in a child. The reason why the child did not come to its end, or "". Raises
        the NotReplayable that `attempt` raised there.
        """
        worker, strategy = self._worker, self._worker.protection.strategy
        layout = worker.protection.layout
        mates = replica_children.inside(layout)
        alone = strategy.alone and layout.shards == 1
        if not alone and not replica_children.can_meet(mates):
            return APART
        # Half: what passes is executed once more within the time that others wait.
        within_s = self._executor.containment.within_s(limit_s(self._executor.longest_s)) / 2
        place = self._place(identity)

        def work(ask: Ask) -> Plain:
            worker.runtime.mode.tries()
            worker.failpoints.disarm()
            if not alone:
                replica_children.meet(
                    mates,
                    ask,
                    rank=worker.env.rank,
                    generation=WHOLE_JOB,
                    place=place,
                    within_s=within_s,
                )
            try:
                attempt()
            except GivenUp as reason:
                return {"given up": str(reason)}
            except NotReplayable as reason:
                return {"refused": str(reason)}
            return {}

        store = replica_children.relaying(worker.store(WHOLE_JOB).call)
        try:
            said = forked_child.run_asking(work, within_s, store)
        except forked_child.ChildFailed as problem:
            return str(problem)
        if "given up" in said:
            raise GivenUp(said["given up"])
        if "refused" in said:
            raise NotReplayable(said["refused"])
        # A child whose mate is gone hears of it in gloo's words.
        return MATES if said and not alone else str(said.get("failed", ""))

    def _place(self, identity: Identity) -> str:
        """A place for children to meet, another one each time that this plan comes to it."""
        machine, (slot, index) = self._worker.protection.machine, identity
        plan = machine.step_index, machine.planned_in
        if plan != self._plan:
            self._plan = plan
            self._times.clear()
        self._times[identity] += 1
        step, generation = plan
        return f"recoverrun/rehearsal/{step}/{generation}/{slot}/{index}/{self._times[identity]}"
