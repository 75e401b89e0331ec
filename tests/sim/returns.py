"""The checkers of replicas that come back. They keep books of their own, as `book` does.

Who joins is a whole replica, each of its ranks in the process that has said that it is ready and of
whose end nobody was told; all members stand at the top of that step, and none has ended. Its state
is what its peers hold there. And whoever is ready in a quiet time does take part. Nobody waits for
the word of a member that is lost.
"""

from collections.abc import Collection, Mapping
from math import ceil

from rendezvous.protocol.arrival_messages import Held, Ready
from rendezvous.protocol.messages import Exited, Farewell, Message
from rendezvous.protocol.records import Record
from rendezvous.protocol.views import View
from tests.sim.plan import Plan
from tests.sim.plane import Key
from tests.sim.violation import demand

PATIENT_STEPS = 5
"""So many more are committed at most, in a quiet time, without a replica that is ready."""


class Returns:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.births = dict.fromkeys(plan.world, 0)
        self.dead: set[int] = set()  # ranks that have no process
        self.told_dead: dict[int, int] = {}  # rank -> the newest birth of whose end one was told
        self.alone: set[int] = set()  # ranks whose launcher is lost
        self.starts: dict[int, int] = {}  # slot -> how often it was started
        self.ready: dict[int, int] = {}  # rank -> the birth that said that it was ready
        self.held: dict[int, tuple[int, int]] = {}  # rank -> generation and step
        self.told_ended: set[int] = set()  # ranks whose script has ended, as one was told
        self.joined_at: dict[int, tuple[float, int]] = {}  # slot -> when, and at which step
        self.joins: dict[int, int] = {}  # slot -> the generation that it joined by
        self.entered: dict[int, int] = {}  # rank -> the newest one that its launcher has heard of
        self.asks: dict[int, int] = {}  # rank -> the member that is to tell it its state
        self.bereft: set[int] = set()  # of those, who were told that it is lost
        self.top = -1  # the newest step that was committed
        self.quiet_since = -1  # the step that was the newest one when something last went wrong

    # --------------------------------------------------------------------------- what happens

    def began(self, rank: int, birth: int) -> None:
        """A process of this rank was started."""
        self.births[rank] = birth
        self.dead.discard(rank)
        self.disturbed()

    def died(self, rank: int) -> None:
        self.dead.add(rank)
        self.asks.pop(rank, None)
        self.bereft.discard(rank)
        self.disturbed()

    def unhosted(self, ranks: Collection[int]) -> None:
        """The launchers of these ranks are lost."""
        self.alone.update(ranks)
        self.disturbed()

    def hosted(self, rank: int) -> None:
        """Another launcher has its place: it knows nothing of former births."""
        self.alone.discard(rank)
        self.told_dead[rank] = max(self.births[rank], self.told_dead.get(rank, -1))
        self.disturbed()

    def said(self, message: Message) -> None:
        """A worker says so; it may never arrive."""
        match message:
            case Ready(rank=rank, incarnation=birth):
                if self.ready.get(rank) != birth:
                    self.ready[rank] = birth
                    self.disturbed()
            case Held(rank=rank, generation=generation, step=step):
                self.held[rank] = (generation, step)
            case _:
                pass

    def informed(self, message: Message) -> None:
        """The coordinator is told so."""
        match message:
            case Exited(rank=rank, incarnation=birth):
                self.told_dead[rank] = max(birth, self.told_dead.get(rank, -1))
            case Farewell(rank=rank):
                self.told_ended.add(rank)
            case _:
                pass

    def disturbed(self) -> None:
        """Something goes on that a return may have to wait for."""
        self.quiet_since = self.top

    def recorded(self, record: Record, live: Collection[int]) -> None:
        """The coordinator starts a replica again, or invites for one, with these members."""
        ended = sorted(self.told_ended.intersection(live))
        demand(not ended, "arrival", f"ranks {ended} have ended, and it has {record.event}")
        slot = record.fields.get("slot")
        if record.event == "replica.start" and isinstance(slot, int):
            self.starts[slot] = self.starts.get(slot, 0) + 1
            alone = self.alone.intersection(self.plan.layout[slot])
            demand(not alone, "arrival", f"ranks {sorted(alone)} start, which nobody hosts")

    # --------------------------------------------------------------------------- who joins

    def joined(self, view: View, ended: Collection[int], next_step: Mapping[int, int]) -> None:
        """The coordinator has told somebody that these join."""
        slots = self.slots(view)
        whole = {rank for slot in slots for rank in self.plan.layout[slot]}
        demand(set(view.joined) == whole, "arrival", f"half a replica joins: {view}")
        for rank in view.joined:
            said = self.ready.get(rank, -1)
            demand(said == self.births[rank], "arrival", f"rank {rank} is not ready: {view}")
            over = self.told_dead.get(rank, -1)
            demand(over < said, "arrival", f"rank {rank} joins, and its process is gone")
        members = set(view.live_ranks) - set(view.joined)
        gone = members.intersection(ended)
        demand(not gone, "arrival", f"ranks {sorted(gone)} have ended, and others join: {view}")
        for rank in sorted(members):
            _, step = self.held.get(rank, (0, -1))
            stands = step == view.from_step == next_step[rank]
            demand(stands, "arrival", f"rank {rank} does not stand at the top of it: {view}")

    def heard(self, rank: int, view: View) -> None:
        """The launcher of this rank passes a view on."""
        if rank in view.joined:
            self.entered[rank] = max(view.generation, self.entered.get(rank, 0))
        elif rank in self.asks and self.asks[rank] not in view.live_ranks:
            self.bereft.add(rank)

    def asked(self, rank: int, donor: int) -> None:
        """A newcomer waits for the word of this member."""
        self.asks[rank] = donor

    def missed(self) -> dict[int, int]:
        """Slots that have joined, by a rank whose launcher has not heard of it."""
        return {
            slot: rank
            for slot, generation in self.joins.items()
            for rank in self.plan.layout[slot]
            if self.entered.get(rank, 0) < generation
        }

    def slots(self, view: View) -> list[int]:
        """Those of the ranks that join."""
        return [s for s, ranks in enumerate(self.plan.layout) if set(ranks) & set(view.joined)]

    def received(
        self, rank: int, step: int, state: object, applied: Mapping[tuple[int, int, str], Key]
    ) -> None:
        """A newcomer takes its place with this state; `applied`: by step, shard and bucket."""
        self.asks.pop(rank, None)
        self.bereft.discard(rank)
        shard = rank % self.plan.shards
        true = tuple(
            tuple(applied[one] for one in sorted(applied) if one[:2] == (older, shard))
            for older in range(step)
        )
        demand(state == true, "state", f"rank {rank} has other parameters at step {step}")

    def hangs(self, slot: int, now: float) -> None:
        """The coordinator ends one that has not committed its first step."""
        at, step = self.joined_at.get(slot, (now, -1))
        late = now - at >= self.plan.arrival_s
        demand(late and self.top < step, "arrival", f"replica {slot} had {now - at:.1f} s")
        stalled = any(fault.kind == "pause" for fault in self.plan.faults)
        demand(stalled or self.plan.arrival_s < 30.0, "arrival", f"why does replica {slot} hang?")
        bereft = self.bereft.intersection(self.plan.layout[slot])
        demand(stalled or not bereft, "arrival", f"ranks {bereft} wait for a donor that is lost")

    # --------------------------------------------------------------------------- who does not

    def applied(self, step: int, waiting: Collection[int], delay_s: float | None) -> None:
        """A member has committed a step without the lost slots `waiting`.

        Messages arrive, after `delay_s` in the mean, or some of them do not (None).
        """
        self.top = max(self.top, step)
        if delay_s is None:
            self.disturbed()
            return
        ready = [slot for slot in waiting if self._is_ready(slot)]
        within = self.top - self.quiet_since <= self._patience(delay_s)
        demand(not ready or within, "arrival", f"replicas {ready} are ready, and do not come")
        gone = [slot for slot in waiting if self._is_startable(slot)]
        demand(not gone or within, "arrival", f"replicas {gone} are not started")

    def _is_ready(self, slot: int) -> bool:
        return all(
            self.ready.get(rank, -1) == self.births[rank] and rank not in self.dead
            for rank in self.plan.layout[slot]
        )

    def _is_startable(self, slot: int) -> bool:
        """True if nothing is in the way of its first start, as everybody knows."""
        ranks = self.plan.layout[slot]
        known = all(self.told_dead.get(rank, -1) >= self.births[rank] for rank in ranks)
        return known and slot not in self.starts and self.alone.isdisjoint(ranks)

    def _patience(self, delay_s: float) -> int:
        """So many steps may pass until all have heard of who is ready: also by what is said again,
        where messages were lost.
        """
        step_s = min(self.plan.counts) * self.plan.microbatch_s + self.plan.collective_s
        again_s = self.plan.again_s if self.plan.loss else 0.0
        return PATIENT_STEPS + ceil((12 * (delay_s + self.plan.thread_s) + again_s) / step_s)
