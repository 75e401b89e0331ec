"""The checkers. They keep their own books of what happened and never ask a machine.

Each broken rule raises `Violation` with the name of the checker, so that a test can say which one
caught a planted bug.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from ft_collectives.step.step_events import (
    Apply,
    Decided,
    Effect,
    Ended,
    Event,
    Voted,
)
from rendezvous.journal.events import EVENTS
from rendezvous.protocol.messages import Committed, Message, Stop, Topology, Verdict
from rendezvous.protocol.records import Record
from rendezvous.protocol.views import Identity, View
from tests.sim.plan import Plan
from tests.sim.plane import Collective, Key
from tests.sim.returns import Returns
from tests.sim.violation import demand

Content = dict[int, tuple[Identity, ...]]
"""Slot -> the identities that it put into a step's sum."""


class Book:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.returns = Returns(plan)
        self.views: dict[int, View] = {}
        self.heard: dict[int, int] = {}  # rank -> newest generation its machine has shown
        self.next_step: Counter[int] = Counter()
        self.keys: dict[tuple[int, int, str], Key] = {}  # (step, shard, bucket) -> applied sum
        self.generations: dict[int, int] = {}  # step -> generation its sums were reduced in
        self.content: dict[int, Content] = {}
        self.applied_in: dict[tuple[int, int], int] = {}  # (rank, step) -> generation of its view
        self.faulted: dict[int, int] = {}  # slot -> rank whose death took it out
        self.led = False  # a script has ended that did what rank 0 does alone at the end
        self.crashed: set[int] = set()  # slots whose script failed by itself
        self.told: set[int] = set()  # slots whose loss the coordinator was told of
        self.missed: set[int] = set()  # slots of which the present coordinator knows as much
        self.ended: set[int] = set()  # ranks whose script ran all its steps
        self.topology_told = False
        self.promising: set[int] = set()  # ranks that told the coordinator what they promise
        self.early = False  # the job was stopped before recovery could help
        self.committed = -1  # the newest step that the coordinator was told of
        self.unheard: set[int] = set()  # steps of which a statement was lost
        self.lines: dict[int, Record] = {}
        self.losses: dict[int, int] = {}  # slot -> generation, from the journal
        self.times: Counter[int] = Counter()  # slot -> how often it was lost
        self.recovered: Counter[int] = Counter()
        self.takeovers = 0  # another coordinator took over, which may tell again what it finds
        self.term_lines: set[int] = set()  # steps that have their line from the present one
        self.term_losses: set[int] = set()
        self.records: Counter[str] = Counter()

    # --------------------------------------------------------------------------- views

    def sent(self, view: View, now: float) -> None:
        """One view per generation; before the topology is known its slots are unknown."""
        first = view.generation == 1 or view.generation in self.views or not self.topology_told
        able = first or self._able(view.live_ranks)
        demand(able, "start", f"{view} goes on, only {sorted(self.promising)} can")
        if view.joined and view.generation not in self.views:
            self._joined(view, now)
        known = self.views.setdefault(view.generation, view)
        same = known.live_ranks == view.live_ranks
        same &= known.live == view.live or not (known.live and view.live)
        demand(same, "INV-2", f"two views of generation {view.generation}: {known} and {view}")

    def _joined(self, view: View, now: float) -> None:
        """Slots are not lost any more, unless their newcomers are dead already."""
        self.returns.joined(view, self.ended, self.next_step)
        for slot in self.returns.slots(view):
            self.returns.joined_at[slot] = (now, view.from_step)
            self.returns.joins[slot] = view.generation
            dead = [rank for rank in self.plan.layout[slot] if rank in self.returns.dead]
            for known in (self.told, self.missed, self.term_losses, self.crashed):
                known.discard(slot)
            self.faulted.pop(slot, None)
            if dead:
                self.faulted[slot] = dead[0]
        for rank in view.joined:
            self.next_step[rank] = view.from_step

    def fed(
        self, rank: int, generation: int, event: Event, effects: Sequence[Effect], before: int
    ) -> None:
        newest = self.heard.get(rank, 0)
        demand(generation >= newest, "INV-2", f"rank {rank} went from {newest} to {generation}")
        self.heard[rank] = generation
        if isinstance(event, Ended):
            self.ended.add(rank)
        applied = [effect.step for effect in effects if isinstance(effect, Apply)]
        if not applied:
            return
        self.applied_in[(rank, applied[0])] = generation
        match event:
            case Voted(generation=voted):
                current = voted == before
            case Decided(decision=decision):
                current = decision.generation == before and decision.verdict == "commit"
            case _:
                current = False
        demand(current, "INV-5", f"rank {rank} in generation {before} applies after {event}")

    # --------------------------------------------------------------------------- steps

    def applied(
        self, rank: int, step: int, sums: Sequence[Collective], delay_s: float | None
    ) -> None:
        """A rank has committed a step; `delay_s` of messages, None if some are lost."""
        expected = self.next_step[rank]
        demand(step == expected, "INV-9", f"rank {rank} applies step {step}, expected {expected}")
        self.next_step[rank] += 1
        self.returns.applied(step, self.faulted if not self.ended else (), delay_s)
        buckets = self.plan.buckets if step else 1  # torch's own reduction is one here
        demand(len(sums) == buckets, "INV-1", f"rank {rank} applies {len(sums)} of {buckets}")
        for collective in sums:
            self._exact(rank, step, collective)
            self._same(rank, step, collective)

    def _exact(self, rank: int, step: int, collective: Collective) -> None:
        """Each identity of the step, once, and nothing else."""
        home = range(self.plan.counts[step])
        exact = {(step, slot, index): 1 for slot in range(self.plan.replicas) for index in home}
        demand(rank in collective.completed, "INV-5", f"rank {rank} never had {collective.key}")
        result = collective.result
        demand(result == exact, "INV-1", f"rank {rank} applies {result} as step {step}")

    def _same(self, rank: int, step: int, collective: Collective) -> None:
        key = collective.key
        known = self.keys.setdefault((step, key.scope, key.kind), key)
        demand(known == key, "INV-3", f"rank {rank} applies {key} in step {step}, others {known}")
        generation = self.generations.setdefault(step, key.generation)
        demand(generation == key.generation, "INV-3", f"step {step}: {generation} and {key}")
        content = _content(collective, self.plan)
        first = self.content.setdefault(step, content)
        demand(first == content, "INV-3", f"step {step}: buckets hold {first} and {content}")
        self._fair(step, content)

    def _fair(self, step: int, content: Content) -> None:
        for slot, done in content.items():
            home = {(slot, index) for index in range(self.plan.counts[step])}
            demand(home <= set(done), "quota", f"step {step}: slot {slot} misses its own: {done}")
        loads = [len(done) for done in content.values()]
        demand(max(loads) - min(loads) <= 1, "quota", f"step {step}: uneven loads {content}")

    # --------------------------------------------------------------------------- journal

    def informed(self, message: Message) -> None:
        """The present coordinator is told so."""
        self.returns.informed(message)
        match message:
            case Topology():
                self.topology_told = True
            case Verdict(rank=rank):
                self.promising.add(rank)
            case Committed(step=step):
                self.committed = max(self.committed, step)
            case _:
                pass

    def succeeded(
        self, *, topology: bool, promising: set[int], committed: int, live: Collection[int]
    ) -> None:
        """Another coordinator begins; `topology`: somebody could tell it the replicas; `live`: the
        ranks of the newest view that it is told of.
        """
        self.takeovers += 1
        for slot, rank in self.returns.missed().items():
            self.faulted.setdefault(slot, rank)  # it is lost, whoever was told that it had joined
        self.topology_told = topology
        self.promising, self.committed = promising, committed
        slots = enumerate(self.plan.layout)
        self.missed = {slot for slot, ranks in slots if not set(ranks) <= set(live)}
        self.term_lines.clear()
        self.term_losses.clear()

    def record(self, record: Record, now: float) -> None:
        self.records[record.event] += 1
        known = EVENTS.get(record.event)
        demand(known is not None, "journal", f"no event {record.event}")
        absent = [name for name in EVENTS[record.event].required if name not in record.fields]
        demand(not absent, "journal", f"{record.event} lacks {absent}")
        demand(bool(record.reason), "journal", f"{record.event} without a reason")
        match record.event:
            case "step.commit":
                self._line(record)
            case "replica.lost":
                slot = _int(record, "slot")
                demand(slot not in self.term_losses, "INV-7", f"replica {slot} is lost twice")
                self.term_losses.add(slot)
                demand(slot in self.faulted, "INV-7", f"replica {slot} is said to be lost")
                self.losses[slot] = _int(record, "generation")
                self.times[slot] += 1
            case "recovery.done":
                slots = record.fields["slots"]
                assert isinstance(slots, list), f"slots: {slots}"
                self.recovered.update(slot for slot in slots if isinstance(slot, int))
                for slot, often in self.recovered.items():
                    most = self.times[slot] + self.takeovers
                    demand(often <= most, "INV-7", f"recovered twice: {slots}")
            case "view.change":
                self.returns.disturbed()
            case "replica.start" | "replica.invite":
                newest = self.views.get(max(self.views, default=0))
                self.returns.recorded(record, () if newest is None else newest.live_ranks)
            case _:
                pass

    def _line(self, record: Record) -> None:
        step = _int(record, "step")
        demand(step not in self.term_lines, "ledger", f"two lines for step {step}")
        newest = max(self.term_lines, default=-1)
        demand(step > newest, "ledger", f"step {step} is written after {newest}")
        self.term_lines.add(step)
        known = self.lines.setdefault(step, record)
        if known is not record and step in self.content and step not in self.unheard:
            self._true(step, record)  # a line told again says the same

    def _true(self, step: int, record: Record) -> None:
        """True if a line of the journal says what is in the sums, which all have applied."""
        demand(step in self.content, "ledger", f"step {step} is written, nobody applied it")
        if step in self.unheard:
            return
        content = self.content[step]
        quota = {str(slot): len(done) for slot, done in content.items()}
        said = record.fields["quota"]
        demand(said == quota, "ledger", f"step {step}: quota {said}, true {quota}")
        done = record.fields.get("done")
        true = {str(slot): [list(one) for one in ids] for slot, ids in content.items()}
        home = len(content) == self.plan.replicas
        demand(home if done is None else done == true, "ledger", f"step {step}: {done}, not {true}")
        total = self.plan.replicas * self.plan.counts[step]
        demand(record.fields["microbatches"] == total, "ledger", f"step {step}: {record.fields}")

    # --------------------------------------------------------------------------- the end

    def ending(self, stop: Stop) -> None:
        """True if the job was allowed to stop like this."""
        left = [slot for slot in range(self.plan.replicas) if slot not in self.faulted]
        for step in sorted(self.lines):
            if stop.exit_code == 0 or step in self.content:
                self._true(step, self.lines[step])
        if stop.exit_code == 0:
            demand(self.led, "stop", "what rank 0 does alone at the end was not done")
            self._finished(left)
            self._made_good(left)
            return
        allowed = {81, 137, 1}

        demand(stop.exit_code in allowed, "stop", f"exit code {stop.exit_code}: {stop.reason}")
        if stop.exit_code == 1 and self._parted(left):
            return
        left = [slot for slot in left if not set(self.plan.layout[slot]) <= self.ended]
        below = len(left) < max(1, self.plan.min_replicas)
        demand(self.early or below, "stop", f"{left} could go on: {stop.exit_code}, {stop.reason}")

    def stopping(self) -> None:
        """The coordinator stops. Could not all who are left go on alone, as far as it was told?"""
        lost = {rank for slot in self.missed for rank in self.plan.layout[slot]}
        self.early = not self.topology_told or not self._able(set(self.plan.world) - lost)

    def _able(self, ranks: Collection[int]) -> bool:
        """Nobody is behind who has voted in a step, has said what it promises, or has ended."""
        return self.committed > 0 or (self.promising | self.ended).issuperset(ranks)

    def _finished(self, left: Sequence[int]) -> None:
        whole = any(set(ranks) <= self.ended for ranks in self.plan.layout)
        demand(bool(left) or whole, "INV-6", "the job ended well with no replica left")
        for slot in left:
            steps = self.plan.ends[slot]
            for rank in self.plan.layout[slot]:
                done = self.next_step[rank]
                demand(done == steps, "INV-6", f"rank {rank} ended after {done} of {steps} steps")

    def _parted(self, left: Sequence[int]) -> bool:
        """True if a script ended before one that is left comes to the transactions after it."""
        ended = [s for s, ranks in enumerate(self.plan.layout) if set(ranks) & self.ended]
        last = max((self.plan.ends[slot] for slot in left), default=0)
        return any(self.plan.ends[slot] < last for slot in ended)

    def _made_good(self, left: Sequence[int]) -> None:
        """Each loss that the coordinator was told of left its records."""
        for slot in sorted(self.told):
            ended = set(self.plan.layout[slot]) & self.ended
            demand(slot in self.losses or bool(ended), "INV-7", f"no record of losing {slot}")
        if self.unheard or not self.plan.fifo:
            return
        steps = range(max((self.plan.ends[slot] for slot in left), default=0))
        demand(set(steps) <= self.lines.keys(), "ledger", f"lines of {sorted(self.lines)}")
        for slot, generation in self.losses.items():
            met = self._all_applied(generation)
            demand(met or slot not in self.crashed, "stop", f"{slot} failed, and the job did not")
            if met and not self.takeovers:
                often = self.recovered[slot]
                demand(often == self.times[slot], "INV-7", f"no recovery.done for {slot}")

    def _all_applied(self, generation: int) -> bool:
        """True if every survivor has applied a step in a view of `generation` or a later one."""
        survivors = [
            rank
            for slot, ranks in enumerate(self.plan.layout)
            for rank in ranks
            if slot not in self.faulted
        ]
        return bool(survivors) and any(
            all(self.applied_in.get((rank, step), 0) >= generation for rank in survivors)
            for step in range(self.plan.steps)
        )


def _content(collective: Collective, plan: Plan) -> Content:
    content: dict[int, tuple[Identity, ...]] = {}
    for slot, ranks in enumerate(plan.layout):
        given = collective.given.get(ranks[collective.key.scope])
        if isinstance(given, Mapping):
            content[slot] = tuple(sorted((identity[1], identity[2]) for identity in given))
    return content


def _int(record: Record, name: str) -> int:
    value = record.fields[name]
    assert isinstance(value, int), f"{record.event}: {name} is {value!r}"
    return value
