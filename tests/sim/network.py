"""The modelled network between workers and the coordinator: late, lost and doubled messages."""

from tests.sim.engine import Engine
from tests.sim.plan import Plan


class Network:
    """As bad as `plan` says until it heals."""

    def __init__(self, engine: Engine, plan: Plan) -> None:
        self._engine = engine
        self._plan = plan
        self._channel_at: dict[tuple[str, int], float] = {}  # the last arrival each way
        self._old_until = 0.0  # the last arrival of what was sent before it healed

    @property
    def healed(self) -> bool:
        return self._engine.now >= self._plan.heal_at

    @property
    def clears(self) -> bool:
        """True while what was sent before it healed still holds up what is sent now."""
        return self.healed and self._engine.now < self._old_until

    @property
    def mean_s(self) -> float:
        """The mean time of a message on its way."""
        return 0.002 if self.healed else self._plan.delay_s

    def loses(self) -> bool:
        """True if the next message is lost."""
        return not self.healed and self._engine.chance(self._plan.loss)

    def delays(self) -> list[float]:
        """Return how long a message is under way, once for each time that it arrives."""
        twice = not self.healed and self._engine.chance(self._plan.duplicate)
        return [self._engine.jitter(self.mean_s) for _ in range(2 if twice else 1)]

    def arrival(self, way: str, rank: int, delay_s: float) -> float:
        """When a message arrives: in the order of sending where the network keeps it."""
        at = self._engine.now + delay_s
        if self._plan.fifo:
            at = max(at, self._channel_at.get((way, rank), 0.0))
            self._channel_at[(way, rank)] = at
        if not self.healed:
            self._old_until = max(self._old_until, at)
        return at

    def hold(self, way: str, rank: int, until: float) -> None:
        """Let nothing that is sent later arrive before this time."""
        self._channel_at[(way, rank)] = until
