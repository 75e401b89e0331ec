"""Takes snapshots: at the top of a step, beside its forward and backward, up to its fence.

At the top the script's thread tells its image and copies all that is not known to stand still. A
thread copies the rest until the optimizer is about to write (`fence`). The snapshot is sealed after
that, so that one in which something moved is none.
"""

import gc
import time
from typing import Any

import torch

from recoverrun.worker.arrival import held_tensors
from recoverrun.worker.arrival.frame_variables import stack_of
from recoverrun.worker.arrival.generator_trials import GeneratorTrials
from recoverrun.worker.arrival.learned import PlaceParts
from recoverrun.worker.arrival.sharded_tensors import local
from recoverrun.worker.context.evidence import digest_of_losses
from recoverrun.worker.context.made_objects import MadeObjects
from recoverrun.worker.errors import NotKnownYet, NotReachable
from recoverrun.worker.snapshots import loader_way_back, rank_image
from recoverrun.worker.snapshots.begun_snapshot import BegunSnapshot
from recoverrun.worker.snapshots.copier import CopyThread
from recoverrun.worker.snapshots.earlier_values import UNTOLD, EarlierValues
from recoverrun.worker.snapshots.failures import fail
from recoverrun.worker.snapshots.lasting_workers import LastingWorkers
from recoverrun.worker.snapshots.loader_trials import LoaderTrials
from recoverrun.worker.snapshots.memory_ahead import MemoryAhead
from recoverrun.worker.snapshots.pace import Pace, Work
from recoverrun.worker.snapshots.packed_states import PackedStates
from recoverrun.worker.snapshots.piece_layout import Layouts
from recoverrun.worker.snapshots.piece_table import RankImage, packed_proof
from recoverrun.worker.snapshots.unchanged_tensors import EXPECTED, UnchangedTensors
from recoverrun.worker.snapshots.uncounted_updates import UncountedUpdates
from recoverrun.worker.snapshots.values_at_start import ValuesAtStart
from recoverrun.worker.step.unvoted_steps import UnvotedSteps
from recoverrun.worker.tracking.microbatches import Top
from recoverrun.worker.verification.held_trials import HOLD_S
from rendezvous.bays.client import ANSWER_S, KeeperClient, SnapshotMissed, TooLittleMemory
from rendezvous.protocol.worker_env import UNASKED
from rendezvous.snapshots.identity import NONE, SnapshotId

SEALED_WITHIN_S = 1.0
"""So long a snapshot waits for the one before it, whose keeper may be slow to hear of it."""

ONE_PROCESS = "the script runs in one process"
MOVED = "{} changed between the top of the step and its update"
GRADIENTS = "the script goes on adding to gradients that it was thought to drop"
UNEQUAL = "the losses of that step are not what they were before all ranks went back to it"
LOST_MEANWHILE = "a replica was lost meanwhile"
NO_MORE = "a replica is lost, and no snapshot is taken any more"
UNTIL = "a replica is lost, and no snapshot is taken until it is back"
OLD_ONE = ": if no replica is left whole all ranks go back to the newest one there is"
AGAIN = "all replicas take part again, and snapshots are taken from step {} on"
MISSED = "no snapshot of step {}: {}"
UNSEEN = "what the script held before it trained was not seen"

AWAY = "the model is on {}, where they are taken if --snapshot-every is given"

KEEPER_WITHIN_S = 60.0
"""So long a keeper that nobody has asked for may take to begin. Nobody waits for it."""


def unserved(made: MadeObjects) -> str:
    """The reason for copying nothing of what the script has made unless somebody asks for it, ""
    if there is none. Before there is an optimizer, a process that uses a GPU trains there.
    """
    devices = {one.device for one in held_tensors.frozen(made)}
    if not devices and torch.cuda.is_initialized():
        devices = {torch.device("cuda")}
    away = next((one for one in devices if one.type != "cpu"), None)
    return "" if away is None else AWAY.format(away)


class Taker:
    """The snapshots of one worker.

    Where there are several replicas none is taken while one of them is lost: what a lost rank was
    is in no snapshot, and survivors go on without (`step.driver`). A rank that has come back goes
    on with the others.
    """

    def __init__(
        self,
        parts: PlaceParts,
        steps: UnvotedSteps,
        client: KeeperClient,
        *,
        pace: Pace,
        attempt: int,
        earlier_values: EarlierValues,
        uncounted: UncountedUpdates,
    ) -> None:
        """Snapshots belong to this `attempt` of the job."""
        self._parts = parts
        self._steps = steps
        self._client = client
        self._pace = pace
        self._attempt = attempt
        self._earlier_values = earlier_values
        self._unchanged = UnchangedTensors()
        self._layouts, self._states = Layouts(), PackedStates()
        self._copier = CopyThread()
        self._lasting = LastingWorkers(parts.worker)
        self._trials = GeneratorTrials(parts.worker, HOLD_S)
        self._loaders = LoaderTrials(parts.worker, loader_way_back.tried, HOLD_S)
        self._taking: BegunSnapshot | None = None
        self._uses_gradients: bool | None = None  # not known yet
        self._missed = False  # the last one was, and it was said
        self._expected: tuple[SnapshotId, int | None] = (NONE, None)  # the proof of its losses
        self._turn = 0  # snapshots that were due so far, at all ranks alike
        self._ahead = MemoryAhead(client, self._copier)
        self._looks = False  # at gradients, as the first backward of this step begins
        self._unasked = parts.worker.env.snapshot_every == UNASKED
        self._begun = 0  # snapshots
        self._uncounted = uncounted
        self._paused = parts.worker.env.birth > 0  # a replica is lost; this process came later

    def resumes(self, of: SnapshotId, before: ValuesAtStart, proof: int | None) -> None:
        """This process goes on from this snapshot; `before` is as the run began, and `proof` of the
        losses with which its step began.
        """
        self._earlier_values.before = before
        self._expected = (of, proof)
        self._pace.begins_at(of.step)

    @property
    def work(self) -> Work:
        """Processor time so far, of training in this process and of what snapshots take beside."""
        copying_s, env = self._copier.worked_s, self._parts.worker.env
        kept_s = self._client.keeper_worked_s / env.local_world_size
        return time.process_time() - copying_s, copying_s + kept_s

    # --------------------------------------------------------------------------- what happens

    def loop_begins(self) -> None:
        """The first iteration of a loop begins, and has drawn no item yet: reading one may change a
        data set, and a process that goes back passes over it.
        """
        worker, runtime = self._parts.worker, self._parts.worker.runtime
        if worker.unvoted is not self._steps or worker.acting or runtime.winds is not None:
            return
        if self._unasked and worker.guarantee.protects:
            return
        if len(runtime.stack) == 1 and not runtime.training_loops:
            self._earlier_values.look_around()

    def begins(self, top: Top) -> None:
        """An iteration of a loop begins."""
        worker = self._parts.worker
        if worker.unvoted is not self._steps or worker.acting:
            return
        if self._unasked and worker.guarantee.protects:
            worker.unvoted = None  # steps outlive a loss: nobody has asked for more
            self._earlier_values.forget()
            return
        if not worker.runtime.training_loops:
            return
        if not self._uncounted.iteration_begins():
            return
        if worker.guarantee.promise is None and worker.strategy is None:
            worker.roll_back(ONE_PROCESS)
        begins = self._steps.begins(top)
        if begins:
            if not worker.transacts:
                worker.progress.at(worker.progress.phase, self._steps.index)
            self._earlier_values.step_begins(stack_of(worker.runtime.stack, top))
        self._earlier_values.note(top)
        if not begins:
            return
        self.fence()
        if worker.lost:
            self._pause()
            return
        if self._paused:
            self._go_on()
        due = self._pace.is_due(self._steps.index, time.perf_counter())
        if self._steps.index == self._expected[0].step:
            return  # the one before it stands until this step has shown to be the same again
        if due:
            self._take(top)
        elif self._pace.over:
            worker.take_no_snapshots(self._pace.over)
        elif not self._ahead.begun and not self._pace.waits:
            if not (self._unasked and worker.transacts):
                self._prepare()

    def backward_begins(self, losses: Any) -> None:
        """Perhaps the first one of a step: what is in gradients then is added to.

        Raises NotRestored if it is the first one after all has gone back, and its losses are not
        what they were.
        """
        (of, expected), looks = self._expected, self._looks
        if self._parts.worker.acting:
            return
        self._uncounted.backward_begins()
        if expected is not None:
            self._expected = (of, None)
            if digest_of_losses(losses) != expected:
                fail(self._parts.worker, of, UNEQUAL)
        self._looks = False
        if not looks:
            return
        taking = self._taking
        if taking is not None:
            taking.proof = digest_of_losses(losses)
        grads = [one.grad for one in held_tensors.trained(self._parts.made)]
        held = [local(one) for one in grads if one is not None]
        self._uses_gradients = any(bool(one.any()) for one in held)
        if self._uses_gradients and taking is not None and not taking.gradients:
            self._give_up(GRADIENTS)

    def fence(self) -> None:
        """An optimizer is about to write: wait for the thread, and seal what it has copied."""
        worker = self._parts.worker
        if worker.acting:
            return
        if worker.lost:
            self._give_up(LOST_MEANWHILE)  # others' microbatches were executed among what it holds
        taking, self._taking, self._looks = self._taking, None, False
        if taking is None:
            return
        began = time.perf_counter()
        if not self._rests(taking.step):
            return
        self._tell_begun()
        moved = self._learned(taking) if taking.learns else taking.moved()
        self._pace.took(time.perf_counter() - began, learning=taking.learns)
        if moved:
            self._unchanged.forget(moved)
            self._miss(taking.step, MOVED.format(moved[0]))
            return
        attempt, step, told = self._attempt, taking.step, taking.told + packed_proof(taking.proof)
        self._copier.ask(lambda: taking.bay.seal(attempt, step, taking.layout.table, told))
        self._ahead.follow(taking.bay.memory.nbytes)

    def _learned(self, taking: BegunSnapshot) -> list[str]:
        """Learn what does not change. Returns the names of those whose copies are none, as they
        had changed before they were copied.
        """
        sums, moved = self._unchanged.learn(), taking.moved()
        self._unchanged.forget(moved)
        doubtful = sums.keys() - (self._unchanged.names or ())
        return [one for one in sorted(doubtful) if not taking.is_as_it_was(one, sums[one])]

    # --------------------------------------------------------------------------- taking one

    def _take(self, top: Top) -> None:
        step, began = self._steps.index, time.perf_counter()
        self._turn += 1
        if self._unasked and not self._ahead.ready:
            self._pace.took(0.0, learning=True)
            return  # nobody waits for a keeper that begins
        collects = gc.isenabled()
        gc.disable()  # a collection takes longer than the image
        try:
            if not self._copier.rest(SEALED_WITHIN_S):
                raise SnapshotMissed("the one before it is not complete yet")
            self._begin(step, self._image(top))
        except TooLittleMemory as why:
            self._lack(step, str(why))
        except (SnapshotMissed, NotKnownYet) as why:
            self._miss(step, str(why))
        except NotReachable as why:
            self._parts.worker.end_snapshots(str(why))
        finally:
            if collects:
                gc.enable()
        learning = self._taking is not None and self._taking.learns
        self._pace.took(time.perf_counter() - began, learning=learning)

    def _image(self, top: Top) -> RankImage:
        """Raises NotReachable."""
        parts = self._parts
        before = self._earlier_values.before
        if before is None:
            raise NotReachable(self._earlier_values.unseen or UNSEEN)
        known = top.context  # where replicas follow each other there is one, at most
        context = known or parts.executor.captures.top(self._steps.index, 0, 0, top)
        top.context = known
        try:
            self._lasting.require(parts.worker.runtime.sources)
            self._loaders.require(parts.worker.runtime.sources)
            return rank_image.made(
                parts,
                top,
                context,
                before,
                states=self._states,
                trials=self._trials,
                passes=self._earlier_values.passes(stack_of(parts.worker.runtime.stack, top)),
                gradients=self._uses_gradients is not False,
                keeping=self._loaders.keeping(parts.worker.runtime.sources),
            )
        except NotReachable:
            raise
        except Exception as error:  # protects a healthy run from what its objects say of themselves
            raise NotReachable(UNTOLD.format(error)) from error

    def _begin(self, step: int, found: RankImage) -> None:
        """Copy what may change before the fence, and let the thread copy the rest.

        Raises SnapshotMissed.
        """
        learns, unchanged = self._unchanged.is_due, self._unchanged
        waits = unchanged.names
        if waits is None:
            waits = frozenset(name for name in found.names if name.startswith(EXPECTED))
        layout = self._layouts.of(found, waits)
        taking = BegunSnapshot(step, found, layout, self._turn + self._pace.missed, learns=learns)
        taking.gradients = self._uses_gradients is not False
        taking.begin(self._client)
        unchanged.begins()
        if learns:
            unchanged.sum_up(found.names, found.tensors)
        strike = self._parts.worker.failpoints.strike
        self._copier.ask(lambda: taking.copy(self._client, lambda: strike(step, "snapshot")))
        self._taking, self._looks = taking, True

    def _prepare(self) -> None:
        """Let the thread take memory for the first snapshot, and see what it has to hold."""
        if self._unasked and (why := unserved(self._parts.made)):
            self._parts.worker.take_no_snapshots(why)
            return
        within_s = KEEPER_WITHIN_S if self._unasked else ANSWER_S
        frozen = held_tensors.frozen(self._parts.made)
        self._ahead.begin(sum(one.nbytes for one in frozen), within_s=within_s)
        self._looks = True

    # --------------------------------------------------------------------------- what goes wrong

    def _give_up(self, why: str) -> None:
        """The snapshot that is being taken is none."""
        taking, self._taking = self._taking, None
        if taking is not None and self._rests(taking.step):
            self._miss(taking.step, why)

    def _rests(self, step: int) -> bool:
        """Wait for the thread. False if it could not copy: there is no snapshot then."""
        try:
            self._copier.rest()
        except TooLittleMemory as why:
            self._lack(step, str(why))
        except SnapshotMissed as why:
            self._miss(step, str(why))
        else:
            return True
        return False

    def _pause(self) -> None:
        """A replica is lost: no snapshot would have its parts. The newest one stands."""
        worker = self._parts.worker
        if not worker.returns:
            worker.unvoted = None
        if not self._paused:
            worker.reporter.notice((UNTIL if worker.returns else NO_MORE) + OLD_ONE)
        self._paused = True

    def _go_on(self) -> None:
        """All replicas take part again, for the first time at the top of this step at all ranks.
        They go on alike, also those whose processes have seen nothing of what was before.
        """
        self._paused, self._turn = False, 0
        self._pace.begins_at(self._steps.index)
        self._parts.worker.reporter.notice(AGAIN.format(self._steps.index))

    def _lack(self, step: int, why: str) -> None:
        """There is no memory. Where nobody has asked for snapshots, and none was taken, that is all
        there is to say of them.
        """
        if self._unasked and self._begun < 2:
            self._parts.worker.end_snapshots(why)
        else:
            self._miss(step, why)

    def _tell_begun(self) -> None:
        """One more is begun: all before it are kept. Rank 0 says how many steps there are between
        them, once it knows.
        """
        self._begun, self._missed = self._begun + 1, False
        if news := self._earlier_values.files.news():
            self._parts.worker.reporter.notice(news)
        if self._begun == 2 and self._parts.worker.env.rank:
            self._parts.worker.guarantee.tell()

    def _miss(self, step: int, why: str) -> None:
        """There is none of this step: that is said once, until there is one again."""
        if not self._missed:
            self._parts.worker.reporter.notice(MISSED.format(step, why))
        self._missed = True
