"""The jobs of the kill matrix: which script, how many ranks, how long."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One canary script on `ranks` workers, of which `shards` make one replica.

    A step is one transaction, or, where the script reduces `each` microbatch, as many as it has.
    """

    name: str
    script: str
    ranks: int
    shards: int = 1
    accumulation: int = 3
    each: bool = False
    steps: int = 8
    width: int = 64  # of the DDP model
    bucket_mb: float = 0.01  # of DDP: many buckets

    @property
    def replicas(self) -> int:
        return self.ranks // self.shards

    @property
    def arguments(self) -> tuple[str, ...]:
        if self.script == "hanging.py":
            return ("--shards", str(self.shards), "--steps", str(self.steps))
        more = (
            ("--shards", self.shards)
            if self.script == "canary_hsdp.py"
            else ("--width", self.width, "--bucket-mb", self.bucket_mb)
        )
        how = (*more, *(["--each"] if self.each else []))
        return tuple(
            str(a) for a in ("--steps", self.steps, "--accumulation", self.accumulation, *how)
        )

    @property
    def transactions(self) -> int:
        return self.steps * (self.accumulation if self.each else 1)

    @property
    def identities(self) -> list[tuple[int, int]]:
        """The microbatches of a transaction, each of which it must have once."""
        many = 1 if self.each else self.accumulation
        return [(slot, i) for slot in range(self.replicas) for i in range(many)]

    @property
    def canaries(self) -> int:
        """Microbatches of all slots in a step."""
        return self.replicas * self.accumulation

    def replica_of(self, rank: int) -> tuple[int, ...]:
        first = rank - rank % self.shards
        return tuple(range(first, first + self.shards))

    def survivors(self, dead: frozenset[int]) -> list[int]:
        """The ranks whose replica nobody was killed of."""
        return [r for r in range(self.ranks) if dead.isdisjoint(self.replica_of(r))]


HSDP = Job(name="hsdp2x2", script="canary_hsdp.py", ranks=4, shards=2)
HSDP3 = Job(name="hsdp3x2", script="canary_hsdp.py", ranks=6, shards=2)
DDP3 = Job(name="ddp3x1", script="canary_ddp.py", ranks=3)
DDP4 = Job(name="ddp4x1", script="canary_ddp.py", ranks=4)
# As scripts are that do not say when gradients are reduced.
HSDP_EACH = Job(name="hsdp2x2-each", script="canary_hsdp.py", ranks=4, shards=2, each=True, steps=4)
DDP3_EACH = Job(name="ddp3x1-each", script="canary_ddp.py", ranks=3, each=True, steps=4)
WHOLE = Job(name="ddp4x1-whole", script="canary_ddp.py", ranks=4, bucket_mb=25)  # one bucket
# FSDP2 with several losses; steps of one microbatch; buckets that take gloo a while to move.
FSDP4 = Job(name="hsdp4x1", script="canary_hsdp.py", ranks=4)
SINGLE = Job(name="ddp4x1-single", script="canary_ddp.py", ranks=4, accumulation=1)
WIDE = Job(name="ddp3x1-wide", script="canary_ddp.py", ranks=3, accumulation=2, steps=4, width=700)
HANGING = Job(name="hanging-ddp3x1", script="hanging.py", ranks=3, steps=14)
HANGING_HSDP = Job(name="hanging-hsdp2x2", script="hanging.py", ranks=4, shards=2, steps=14)
HANGING_HSDP3 = Job(name="hanging-hsdp3x2", script="hanging.py", ranks=6, shards=2, steps=14)
HANG = Job(name="hang", script="hang.py", ranks=2)
# Long enough for a kill from outside to strike before the end. The first has two passes over its
# data, and the second one begins in the middle of step 13.
LONG_HSDP = Job(name="hsdp2x2-long", script="canary_hsdp.py", ranks=4, shards=2, steps=24)
LONG_DDP = Job(name="ddp4x1-long", script="canary_ddp.py", ranks=4, steps=60)
