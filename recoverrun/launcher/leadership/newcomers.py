"""Launchers without a place: those that join a job that forms, and spares beside one that runs.

Whoever comes when the job has begun waits as a spare, and takes a place that is free in the next
attempt. Nodes that come and are lost again and again are held off.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from recoverrun.launcher.leadership.launchers import AttemptMembers
from recoverrun.launcher.network.frames import NOBODY, Envelope
from recoverrun.text import sanitize
from rendezvous.membership import formation
from rendezvous.membership.flapping import FlappingNodes
from rendezvous.membership.formation import Abandoned, Formation, Formed, Reply, Waiting
from rendezvous.membership.vacant_places import assigned
from rendezvous.protocol.exit_codes import ExitCode
from rendezvous.protocol.formation_messages import Join, Refusal, Restart, Spare
from rendezvous.protocol.records import Record

SPARES_MOST = 256
"""Launchers that may wait for a place: what comes back again and again must not fill the memory."""


REASON_MOST = 1000
"""Characters of the reason of a refusal."""


class LateJoinAnswer(NamedTuple):
    """The answer to a launcher that comes when the job has begun."""

    message: Refusal | Spare
    spare: bool  # it may take a place


class Given(NamedTuple):
    """A launcher has a place: who is told, and the ranks that it hosts."""

    told: tuple[Envelope, ...]
    ranks: tuple[int, ...]


class Newcomers:
    """The newcomers of the job at the coordinator host `own`, whose `members` have a place."""

    def __init__(
        self,
        formation: Formation,
        members: AttemptMembers,
        *,
        own: str,
        begin: Callable[[Formed, float], None],
        record: Callable[[Record], None],
        flapping_nodes: FlappingNodes,
    ) -> None:
        """`begin` is called once an attempt has formed. `flapping_nodes` is of the launcher."""
        self.spares: dict[str, Join] = {}  # for the next attempt
        self._held_off: set[str] = set()  # those that wait, and have no place in that for a while
        self.waiting: set[str] = set()  # launchers that joined a job not yet formed
        self.placed: set[str] = set()  # those that have a place, and take part soon
        self.refusal: Refusal | None = None  # the job will never be formed
        self.restart: Restart | None = None  # what the members were told last
        self._formation = formation
        self._members = members
        self._own = own
        self._begin = begin
        self._record = record
        self._flapping_nodes = flapping_nodes

    @property
    def least(self) -> int:
        """The least number of nodes."""
        return self._formation.least

    @property
    def most(self) -> int:
        """The greatest number of nodes."""
        return self._formation.most

    @property
    def names(self) -> list[str]:
        """All others who wait, and may."""
        return sorted({*self.waiting, *self.spares} - self._members.evicted - {self._own})

    @property
    def others(self) -> list[str]:
        """All others who wait or have a place, and may."""
        names = {*self._members.known, *self.waiting, *self.spares}
        return sorted(names - self._members.evicted - {self._own})

    def knows(self, sender: str) -> bool:
        """True if this launcher has a place, or has joined a job not yet formed."""
        return sender in self._members.known or sender in self.waiting

    @property
    def free(self) -> int:
        """The number of places beyond those for all spares; negative if spares have none."""
        return self._vacant - len(self.spares)

    @property
    def _vacant(self) -> int:
        """Nodes that the job could have and has not."""
        return self._formation.most - len(self._members.present)

    # --------------------------------------------------------------------------- forming

    def join(self, join: Join, now: float) -> list[Envelope]:
        """Let a launcher take part, if it can."""
        return self._form(self._formation.step(formation.Joined(join), now), now)

    def leave(self, sender: str, reason: str, now: float) -> list[Envelope]:
        """A launcher is lost before the job has formed, or has formed again."""
        member = self._members.known.pop(sender, None)
        told = sender in self._members.evicted or self.refusal is not None
        if member is not None and not told:
            self._record(member.lost(f"{member.name}: {reason}"))
        self.waiting.discard(sender)
        return self._form(self._formation.step(formation.Left(sender), now), now)

    def tick(self, now: float) -> list[Envelope]:
        """Time passed, and the job has not formed."""
        return self._form(self._formation.step(formation.Tick(), now), now)

    def deadline(self) -> float | None:
        """The time at which `tick` is next needed, or None."""
        return self._formation.deadline()

    def _form(self, effects: list[formation.Effect], now: float) -> list[Envelope]:
        envelopes: list[Envelope] = []
        for effect in effects:
            match effect:
                case Reply(incarnation=to, message=Refusal() as refusal):
                    envelopes.append(Envelope(to, NOBODY, self._worded(refusal)))
                case Reply(incarnation=to, message=message):
                    envelopes.append(Envelope(to, NOBODY, message))
                case Formed(joins=joins):
                    self._flapping_nodes.know(joins)
                    self.waiting.clear()
                    for join in joins:
                        self.spares.pop(join.incarnation, None)
                    self._begin(effect, now)
                case Waiting(reason=reason):
                    self._record(Record("job.wait", reason))
                case Abandoned(reason=reason, exit_code=code):
                    self.refusal = self._worded(Refusal(reason=reason, exit_code=code))
        return envelopes

    def _worded(self, refusal: Refusal) -> Refusal:
        """The refusal, with a sentence where all would have gone back to a lost snapshot."""
        # Another launcher may have given the reason, and terminals show it.
        refusal = replace(refusal, reason=sanitize(refusal.reason, REASON_MOST))
        start, restart = self._members.start, self.restart
        back = -1 if restart is None else restart.back
        if back < 0 or start is None or refusal.exit_code != ExitCode.NEVER_FORMED:
            return refusal
        words = f"the snapshot of step {back:,} is for {start.world_size} ranks: {refusal.reason}"
        return Refusal(reason=words, exit_code=ExitCode.REQUEUE)

    def refuse(self, refusal: Refusal) -> list[Envelope]:
        """The job ends: spares are told, and so is whoever comes."""
        self.refusal = refusal
        peers = sorted({*self.spares, *self._held_off})
        self.spares.clear()
        self._held_off.clear()
        return [Envelope(peer, NOBODY, refusal) for peer in peers]

    # --------------------------------------------------------------------------- spares

    def offer(self, join: Join, now: float) -> LateJoinAnswer | None:
        """Answer a launcher that comes when the job has begun; None: the formation answers it."""
        flapping = self._flapping_nodes.judge(join, now)
        if isinstance(flapping, Refusal):
            return LateJoinAnswer(flapping, spare=False)
        many = join.incarnation not in self.spares and len(self.spares) >= SPARES_MOST
        if many or self._formation.objection(join) is not None:
            return None
        wait = Spare(nnodes=self._formation.most, places=self._members.places(self._own))
        if flapping is not None:
            if len(self._held_off) < SPARES_MOST:
                self._held_off.add(join.incarnation)
            return LateJoinAnswer(wait, spare=False)
        self._held_off.discard(join.incarnation)
        self.spares[join.incarnation] = join
        self._flapping_nodes.know([join])
        return LateJoinAnswer(wait, spare=True)

    def renew(self, restart: Restart, restarts: int, now: float) -> list[Envelope]:
        """Form the next attempt: of those who are present, and of spares."""
        chosen = list(self.spares.values())[: self._vacant]
        awaited = frozenset(self._members.present) | {join.incarnation for join in chosen}
        self._formation = self._formation.renewed(
            attempt=restart.attempt, restarts=restarts, awaited=awaited, begun_at=now
        )
        self.restart = restart
        envelopes = [Envelope(peer, NOBODY, restart) for peer in [*self.others, self._own]]
        self.waiting.clear()
        return envelopes + self.fill(now)

    def call_again(self, sender: str) -> list[Envelope]:
        """A launcher that has a place may not have heard yet that it should join again."""
        heard = self.restart is None or sender in self.waiting
        return [] if heard else self.call(sender)

    def call(self, sender: str) -> list[Envelope]:
        """Tell a launcher that all join again, if they do."""
        return [] if self.restart is None else [Envelope(sender, NOBODY, self.restart)]

    def fill(self, now: float) -> list[Envelope]:
        """Give spares the places of nodes that will not come again."""
        envelopes: list[Envelope] = []
        for join in list(self.spares.values())[: self._vacant]:
            if join.incarnation not in self.waiting:
                self.waiting.add(join.incarnation)
                envelopes += self.join(join, now)
        return envelopes

    def give_places(self, wants: Callable[[tuple[int, ...]], bool]) -> list[Given]:
        """Give spares the places of lost nodes while the job runs, if it `wants` their ranks."""
        members = self._members
        if not self.spares or members.start is None:
            return []
        vacant = [
            rank
            for rank in members.vacant
            if wants(tuple(members.known[members.start.peers[rank][0]].ranks))
        ]
        given = []
        for node_rank, join in assigned(members.start, vacant, [*self.spares.values()]).items():
            del self.spares[join.incarnation]
            self.placed.add(join.incarnation)
            former = members.start.nodes[node_rank]
            member = members.replace(node_rank, join)
            self._record(member.record(f" in the place of {former}, which was lost"))
            told: list[Envelope] = []
            for name in sorted(members.present):
                told += members.place_of(name, self._own)
            given.append(Given(tuple(told), tuple(member.ranks)))
        return given

    # --------------------------------------------------------------------------- losing

    def count_loss(self, sender: str, reason: str, now: float) -> None:
        """A launcher is lost, with a place or without: record what a person should read of it."""
        for record in self._flapping_nodes.lose(sender, reason, now):
            self._record(record)

    def part(self, sender: str, reason: str) -> None:
        """A launcher leaves as planned: that is no loss."""
        self._flapping_nodes.leave(sender, reason)

    def drop(self, sender: str) -> bool:
        """Let a spare go that is lost; True if it was one."""
        self._held_off.discard(sender)
        if self.spares.pop(sender, None) is None:
            return False
        self.waiting.discard(sender)
        return True

    def watches(self, sender: str, *, running: bool) -> bool:
        """True if nobody else sees whether this launcher lives: the register watches members."""
        member = sender in self._members.known and sender not in self.placed
        return sender != self._own and not (member and running)
