"""The seat of the coordinator: the machines that serve the whole job, in one launcher's loop.

It composes formation, coordinator, store and detector, none of which knows another, and turns their
effects into posts: messages for the launchers, of which its own is one. It decides nothing but what
is fenced: nobody speaks for a launcher but itself, and for a rank only the launcher that hosts it.
"""

from collections.abc import Callable
from dataclasses import dataclass

from recoverrun.errors import ExitCode
from rendezvous import coordinator, detector, formation, kv
from rendezvous.coordinator import Coordinator
from rendezvous.detector import Detector
from rendezvous.effects import Effect, Json, KillRanks, Record, StopJob, ToRank
from rendezvous.formation import Abandoned, Formation, Formed, Reply
from rendezvous.messages import (
    Beat,
    Join,
    Message,
    Refusal,
    Start,
    Stop,
    StoreAnswer,
    StoreCall,
)

NOBODY = -1
"""A post for the launcher itself, not for one of its ranks."""


@dataclass(frozen=True, slots=True)
class Post:
    """Send `message` to the launcher `to`; `rank` is the worker it is for, or NOBODY."""

    to: str
    rank: int
    message: Message


@dataclass(frozen=True, slots=True)
class _Member:
    """A launcher that takes part."""

    incarnation: str
    name: str
    ranks: range


class Seat:
    """Everything of the job that exists once. Launchers are named by their incarnations."""

    def __init__(
        self,
        *,
        formation: Formation,
        own: str,
        min_replicas: int,
        record: Callable[[Record], None],
    ) -> None:
        self._formation = formation
        self._own = own
        self._min_replicas = min_replicas
        self._record = record
        self._detector = Detector()
        self._coordinator: Coordinator | None = None
        self._store = kv.Store()
        self._generation = 0
        self._members: dict[str, _Member] = {}
        self._waiting: set[str] = set()  # launchers that joined a job not yet formed
        self._fallen: set[str] = set()  # members that were silent for too long
        self._uninformed: set[str] = set()  # members that have not confirmed the stop
        self._refusal: Refusal | None = None  # the job will never be formed
        self.stopped: Stop | None = None

    # --------------------------------------------------------------------------- events

    def receive(self, sender: str, message: Message, now: float) -> list[Post]:
        """A message of the launcher `sender`, or of a worker that it hosts."""
        if sender in self._fallen:
            return [Post(sender, NOBODY, self._banishment(sender))]
        if isinstance(message, Join):
            return self._join(sender, message, now)
        if sender not in self._members and sender not in self._waiting:
            return []
        if sender != self._own:
            self._detector.step(detector.Heard(sender.encode()), now)
        if self.stopped is not None:
            return self._remind(sender, message)
        if isinstance(message, Stop):
            return self.stop(message)
        if self._coordinator is None or isinstance(message, Beat):
            return []
        rank = getattr(message, "rank", NOBODY)
        if rank not in self._members[sender].ranks:
            return []  # Nobody speaks for ranks that it does not host.
        if isinstance(message, StoreCall):
            return self._answers(self._store.step(kv.Called(message), now))
        return self._coordinate(coordinator.Received(message=message), now)

    def tick(self, now: float) -> list[Post]:
        """Time passed."""
        posts: list[Post] = []
        for silence in self._detector.step(detector.Tick(), now):
            posts += self._lose(silence.peer.decode(), silence.silent_s, now)
        if self._coordinator is None:
            posts += self._form(self._formation.step(formation.Tick(), now), now)
        elif self.stopped is None:
            posts += self._coordinate(coordinator.Tick(), now)
        return posts + self._answers(self._store.step(kv.Tick(), now))

    def deadline(self) -> float | None:
        """When `tick` is next needed, or None."""
        machines = [self._detector.deadline(), self._store.deadline()]
        if self._coordinator is None:
            machines.append(self._formation.deadline())
        elif self.stopped is None:
            machines.append(self._coordinator.deadline())
        return min((at for at in machines if at is not None), default=None)

    def beat(self, beat: Beat) -> list[Post]:
        """Tell all others that this launcher lives."""
        return [Post(peer, NOBODY, beat) for peer in self._others()]

    def stop(self, stop: Stop) -> list[Post]:
        """End the job, or its forming; only the first reason counts."""
        if self.stopped is not None:
            return []
        self.stopped = stop
        if self._coordinator is None:
            refusal = Refusal(reason=stop.reason, exit_code=stop.exit_code)
            return [Post(peer, NOBODY, refusal) for peer in self._others()]
        self._uninformed = set(self._others())
        return [Post(peer, NOBODY, stop) for peer in [*self._others(), self._own]]

    @property
    def settled(self) -> bool:
        """Whether every launcher that lives knows that the job is over."""
        return not self._uninformed

    def _remind(self, sender: str, message: Message) -> list[Post]:
        """A launcher confirms a stop by sending it back; until then it is told again."""
        if isinstance(message, Stop):
            self._uninformed.discard(sender)
        known = sender not in self._uninformed or not isinstance(message, Beat)
        return [] if known or self.stopped is None else [Post(sender, NOBODY, self.stopped)]

    # --------------------------------------------------------------------------- forming

    def _join(self, sender: str, join: Join, now: float) -> list[Post]:
        if join.incarnation != sender:
            return []
        if self._refusal is not None:
            return [Post(sender, NOBODY, self._refusal)]
        posts = self._form(self._formation.step(formation.Joined(join), now), now)
        refused = any(post.to == sender and isinstance(post.message, Refusal) for post in posts)
        if not refused and self._coordinator is None:
            self._waiting.add(sender)
        if not refused and sender != self._own:
            self._detector.step(detector.Heard(sender.encode()), now)
        return posts

    def _form(self, effects: list[formation.Effect], now: float) -> list[Post]:
        posts: list[Post] = []
        for effect in effects:
            match effect:
                case Reply(incarnation=to, message=message):
                    posts.append(Post(to, NOBODY, message))
                case Formed(joins=joins, starts=starts):
                    self._open(joins, starts)
                case Abandoned(reason=reason):
                    code = ExitCode.NEVER_FORMED
                    self._refusal = Refusal(reason=reason, exit_code=code)
        return posts

    def _open(self, joins: tuple[Join, ...], starts: tuple[Start, ...]) -> None:
        for join, start in zip(joins, starts, strict=True):
            ranks = range(start.first_rank, start.first_rank + start.nproc)
            name = start.nodes[start.node_rank]
            self._members[join.incarnation] = _Member(join.incarnation, name, ranks)
            fields: dict[str, Json] = {"nproc": start.nproc, "name": name}
            words = f"node {name} joins with {start.nproc} workers"
            self._record(Record("node.join", words, fields))
        self._waiting.clear()
        world = tuple(range(starts[0].world_size))
        self._coordinator = Coordinator(world=world, min_replicas=self._min_replicas)
        self._generation = self._coordinator.generation

    # --------------------------------------------------------------------------- running

    def _coordinate(self, event: coordinator.Event, now: float) -> list[Post]:
        """Take the coordinator's step; an invariant that breaks in it ends the job with 85."""
        assert self._coordinator is not None, "there is no job yet"
        try:
            effects = self._coordinator.step(event, now)
        except AssertionError as error:
            return self._broken(str(error))
        posts: list[Post] = []
        if self._coordinator.generation != self._generation:
            # First of all: those who wait in the old generation's store are let go.
            self._generation = self._coordinator.generation
            posts += self._answers(self._store.step(kv.Superseded(self._generation), now))
        for effect in effects:
            posts += self._carry_out(effect)
        return posts

    def _carry_out(self, effect: Effect) -> list[Post]:
        match effect:
            case ToRank(rank=rank, message=message):
                host = self._host(rank)
                return [] if host is None else [Post(host.incarnation, rank, message)]
            case KillRanks(kill=kill):
                hosts = {host for rank in kill.ranks if (host := self._host(rank)) is not None}
                names = sorted(host.incarnation for host in hosts)
                return [Post(name, NOBODY, kill) for name in names]
            case StopJob(stop=stop):
                return self.stop(stop)
            case Record():
                self._record(effect)
                return []

    def _broken(self, words: str) -> list[Post]:
        invariant = words.split(":")[0]
        self._record(Record("invariant.break", words, {"invariant": invariant}))
        return self.stop(Stop(exit_code=ExitCode.INVARIANT, reason=words, root_rank=-1))

    def _answers(self, answers: list[StoreAnswer]) -> list[Post]:
        posts = []
        for answer in answers:
            host = self._host(answer.rank)
            if host is not None:
                posts.append(Post(host.incarnation, answer.rank, answer))
        return posts

    # --------------------------------------------------------------------------- losing

    def _lose(self, sender: str, silent_s: float, now: float) -> list[Post]:
        if self._coordinator is None:
            self._waiting.discard(sender)
            return self._form(self._formation.step(formation.Left(sender), now), now)
        self._uninformed.discard(sender)
        if self.stopped is not None:
            return []
        self._fallen.add(sender)
        member = self._members[sender]
        reason = f"silent for {silent_s:.1f} s (limit {detector.LOST_AFTER_S:.1f} s)"
        lost = coordinator.NodeLost(node=member.name, ranks=tuple(member.ranks), reason=reason)
        return self._coordinate(lost, now)

    def _banishment(self, sender: str) -> Stop:
        """For a launcher that was given up: its ranks have been replaced, it must not go on."""
        name = self._members[sender].name
        reason = f"node {name} was silent for so long that the job went on without it"
        return Stop(exit_code=ExitCode.PARTITIONED, reason=reason, root_rank=-1)

    def _host(self, rank: int) -> _Member | None:
        for member in self._members.values():
            if rank in member.ranks:
                return None if member.incarnation in self._fallen else member
        return None

    def _others(self) -> list[str]:
        peers = {*self._members, *self._waiting} - self._fallen - {self._own}
        return sorted(peers)
