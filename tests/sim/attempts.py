"""One job from attempt to attempt: the production host, and launchers that do as they are told.

In each attempt something goes wrong at a random moment of its beginning or after it. The book knows
what has been said, and by that alone what must follow: the job goes on, all ranks start again (and
that counts, or not), or it ends.
"""

import random
from typing import Literal

from recoverrun.launcher.leadership.coordinator_host import CoordinatorHost
from recoverrun.launcher.leadership.first_failure import ACROSS_S
from recoverrun.launcher.network.frames import Envelope
from rendezvous.coordinator.beginning import DEATH_WAIT_S
from rendezvous.coordinator.recovery_policy import USUAL
from rendezvous.membership.flapping import FlappingNodes
from rendezvous.membership.formation import Formation
from rendezvous.protocol.formation_messages import Join, Restart, Start
from rendezvous.protocol.incarnations import incarnation
from rendezvous.protocol.messages import (
    Exited,
    Farewell,
    Message,
    PeerFault,
    Promise,
    Stop,
    Topology,
    Verdict,
)
from tests.sim.violation import demand
from tests.unit.stores import lone_store

NODES = ("own", "far")
RANKS = range(4)
MOST_ATTEMPTS = 12
EARLY_MOST = 3

Reached = Literal["nothing", "replicas", "some promises", "all promises", "refusal", "an end"]
REACHED: tuple[Reached, ...] = (
    "nothing", "replicas", "some promises", "all promises", "refusal", "an end",
)  # fmt: skip
STARTING = ("replicas", "some promises")


class Job:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(f"attempts {seed}")
        self.most = self.rng.choice((0, 1, 2))
        self.now = 0.0
        self.attempt = 0
        self.counted = 0
        self.early = 0
        self.over = False
        formation = Formation(
            nnodes=len(NODES), run_id="job", version="1", master_addr="h:1", timeout_s=600.0,
            begun_at=0.0,
        )  # fmt: skip
        self.coordinator_host = CoordinatorHost(
            formation=formation, own=NODES[0], policy=USUAL, record=lambda record: None,
            store=lone_store(), flapping_nodes=FlappingNodes(), max_restarts=self.most,
        )  # fmt: skip

    def run(self) -> None:
        while not self.over and self.attempt < MOST_ATTEMPTS:
            self._form()
            reached = self.rng.choice(REACHED)
            self._reach(reached)
            self._fail(reached)
        demand(self.early <= EARLY_MOST, "attempts", f"{self.early} early restarts")

    def _form(self) -> None:
        envelopes: list[Envelope] = []
        for node in NODES:
            join = Join(
                run_id="job", node=node, incarnation=node, node_rank=-1,
                nproc=len(RANKS) // len(NODES), version="1", attempt=self.attempt,
            )  # fmt: skip
            envelopes += self.coordinator_host.receive(node, join, self.now)
        starts = [envelope.message for envelope in envelopes if isinstance(envelope.message, Start)]
        found = {(start.attempt, start.restarts) for start in starts}
        due = (self.attempt, self.counted)
        demand(found == {due}, "attempts", f"begun as {found}, not {due}")

    def _say(self, rank: int, message: Message) -> list[Envelope]:
        self.now += 0.01
        return self.coordinator_host.receive(
            NODES[rank * len(NODES) // len(RANKS)], message, self.now
        )

    def _reach(self, reached: Reached) -> None:
        if reached == "nothing":
            return
        replicas = tuple((rank,) for rank in RANKS)
        self._say(0, Topology(rank=0, generation=1, strategy="sim", replicas=replicas))
        many = {"some promises": self.rng.randint(1, 2), "all promises": 4}.get(reached, 0)
        for rank in RANKS[:many]:
            self._promise(rank, "exact-samples")
        if reached == "refusal":
            self._promise(self.rng.choice(RANKS), "unprotected")
        if reached == "an end":
            self._say(3, Farewell(rank=3, generation=1, step=0))

    def _promise(self, rank: int, promise: Promise) -> None:
        verdict = Verdict(rank=rank, generation=1, promise=promise, microbatches=1, reason="r")
        self._say(rank, verdict)

    def _fail(self, reached: Reached) -> None:
        """A rank is killed, ends by an error of its own, or its connections fail."""
        kinds = ["kill", "error", "fault"] if reached in STARTING else ["kill", "error"]
        kind, rank = self.rng.choice(kinds), self.rng.choice(RANKS[:3])
        envelopes: list[Envelope] = []
        if kind == "fault":
            fault = PeerFault(rank=rank, generation=1, reason="reset")
            envelopes += self._say(rank, fault)
            self.now += DEATH_WAIT_S
            envelopes += self._say(rank, fault)
        else:
            code, error = (-9, "") if kind == "kill" else (7, f"ValueError: {self.attempt}")
            exited = Exited(
                rank=rank, incarnation=incarnation(self.attempt, 0), node="n", code=code,
                ours=False, error=error, detected_s=0.0,
            )  # fmt: skip
            envelopes += self._say(rank, exited)
            self.now += ACROSS_S
            envelopes += self.coordinator_host.tick(self.now)
        self._judge(reached, kind, envelopes)

    def _judge(self, reached: Reached, kind: str, envelopes: list[Envelope]) -> None:
        restarted = any(isinstance(envelope.message, Restart) for envelope in envelopes)
        stopped = any(isinstance(envelope.message, Stop) for envelope in envelopes)
        early = reached in STARTING and kind != "error" and self.early < EARLY_MOST
        free = reached == "all promises"
        counts = not early and not free and self.counted < self.most
        words = f"{kind} after {reached}, {self.early} early and {self.counted} of {self.most}"
        demand(restarted == (early or counts), "attempts", f"again: {restarted}; {words}")
        demand(stopped == (not early and not counts and not free), "attempts", f"stops: {words}")
        self.over = stopped or free
        self.attempt += restarted
        self.early += early
        self.counted += counts
