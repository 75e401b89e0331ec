"""The user's wishes where ranks are lost or hang."""

from dataclasses import dataclass

from rendezvous.membership.hang_events import OnHang


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryPolicy:
    """The policy of one job, the same on all nodes."""

    min_replicas: int = 1
    """With fewer replicas left the job stops."""

    several_nodes: bool = False
    """The job may have more nodes than one: what ranks of one node do alike may be its doing."""

    on_hang: OnHang = "recover"
    """A rank that hangs is lost, or only named ("tell"), or not looked for ("off")."""

    hang_limit_s: float = 0.0
    """The job stops if no rank moves for so long; 0: never."""

    returns: bool = False
    """A lost replica is started again, and takes part as soon as it is ready."""

    snapshot_every: str = "0"
    """Steps from one snapshot in memory to the next, or "auto"; "0": there are none; `UNASKED`:
    "auto", and none where a step outlives a loss."""

    snapshot_parity: int = 1
    """Nodes of each group that may be lost with their parts of a snapshot."""

    snapshots_on_disk: bool = False
    """Safe ones are written to a directory of the user's, too."""

    arrival_s: float = 30.0
    """So long it may take to commit its first step, beyond what others take for two; then it is
    lost."""


USUAL = RecoveryPolicy()
