"""etcd in a simulated history: two keys and some leases. It never lies, and is not always there."""

from dataclasses import dataclass, field

from rendezvous.consensus.configuration import Configuration
from rendezvous.consensus.etcd_api import (
    Answer,
    Call,
    Decide,
    Grant,
    Leased,
    Look,
    Renew,
    Revoke,
    Seen,
    Stand,
)
from rendezvous.consensus.register_events import Answered
from tests.sim.views.book import Book
from tests.sim.views.bystander import Reply


@dataclass(slots=True)
class Shelf:
    place: int
    name: str
    alive: bool = True
    paused_until: float = 0.0
    revision: int = 1
    leader: tuple[str, int, int] | None = None  # name, create revision, lease
    configuration: tuple[Configuration, int] | None = None  # with its revision
    leases: dict[int, tuple[int, float]] = field(default_factory=dict)  # ttl, until

    def receive(self, _to: str, event: object, now: float, book: Book) -> list[Reply]:
        """A request has come from a launcher."""
        assert isinstance(event, tuple), f"{event} is for no etcd"
        name, request = event
        answer = self.perform(request.call, now)
        if isinstance(answer, Seen) and answer.done and isinstance(request.call, Decide):
            book.decided(request.call.configuration)
        what = f"etcd: {type(request.call).__name__}"
        return [Reply(name, Answered(request.serial, answer), what)]

    def crash(self) -> None:
        """It is made of several machines: that is what it is there for."""

    def perform(self, call: Call, now: float) -> Answer:
        self._expire(now)
        match call:
            case Look():
                return self._seen(True)
            case Grant(ttl_s=ttl_s):
                self.revision += 1
                self.leases[self.revision] = (ttl_s, now + ttl_s)
                return Leased(self.revision, ttl_s)
            case Renew(lease=lease):
                if lease not in self.leases:
                    return Leased(lease, 0.0)
                ttl_s = self.leases[lease][0]
                self.leases[lease] = (ttl_s, now + ttl_s)
                return Leased(lease, ttl_s)
            case Revoke(lease=lease):
                self.leases.pop(lease, None)
                self._expire(now)
                return Leased(lease, 0.0)
            case Stand(lease=lease, name=name):
                free = self.leader is None and lease in self.leases
                if free:
                    self.revision += 1
                    self.leader = (name, self.revision, lease)
                return self._seen(free)
            case Decide(claim=claim, revision=revision, configuration=configuration):
                claimed = self.leader is not None and self.leader[1] == claim
                done = claimed and revision == (
                    self.configuration[1] if self.configuration is not None else 0
                )
                if done:
                    self.revision += 1
                    self.configuration = (configuration, self.revision)
                return self._seen(done)

    def _expire(self, now: float) -> None:
        self.leases = {n: (ttl, until) for n, (ttl, until) in self.leases.items() if until > now}
        if self.leader is not None and self.leader[2] not in self.leases:
            self.leader = None

    def _seen(self, done: bool) -> Seen:
        name, claim, lease = self.leader or ("", 0, 0)
        configuration, revision = self.configuration or (None, 0)
        return Seen(
            done=done,
            leader=name,
            claim=claim,
            lease=lease,
            configuration=configuration,
            revision=revision,
        )
