"""A launcher tells of its keeper and its exchange, and tells it again."""

from types import SimpleNamespace
from typing import Any

import pytest

from recoverrun.config.options import read
from recoverrun.config.run_config import parse_options
from recoverrun.launcher.node import node_snapshots
from recoverrun.launcher.node.node_snapshots import NodeSnapshots
from rendezvous.protocol.formation_messages import Start
from rendezvous.protocol.snapshot_messages import Exchanging, Holding
from rendezvous.snapshots.identity import NO_ORDER

HOLDING = Holding(keeper=1, serial=1, order=NO_ORDER, held=())
STANDING = Exchanging(port=4312)

TWO_NODES = Start(
    generation=1, attempt=0, node_rank=0, nnodes=2, first_rank=0, nproc=1, world_size=2,
    master_addr="a:1", nodes=("a", "b"),
)  # fmt: skip


class StandIn:
    """A keeper or an exchange."""

    path, awaits = "path", False

    def __init__(self, *_: object, **__: object) -> None:
        self.told: list[Any] = []
        self.standing = STANDING

    def begin(self, start: Start, *, parity: bool) -> None:
        assert parity

    def tick(self, now: float) -> list[Any]:
        return self.told


@pytest.mark.parametrize(
    ("told", "expected"), [([], []), ([HOLDING], [HOLDING, STANDING])], ids=["settled", "not yet"]
)
def test_where_its_exchange_is_is_told_again_with_what_its_keeper_has(
    told: list[Any], expected: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = StandIn()
    keeper.told = told
    monkeypatch.setattr(node_snapshots, "NodeKeeper", lambda *_, **__: keeper)
    monkeypatch.setattr(node_snapshots, "NodeExchange", StandIn)
    options = read(["--snapshot-every=3", "--nnodes=2", "--rdzv-endpoint=a:1", "x.py"], {})
    assert options is not None
    station: Any = SimpleNamespace(watch=None, unwatch=None)
    snapshots = NodeSnapshots(
        "path", parse_options(options, {}), None, station=station, record=lambda _: None
    )
    snapshots.begin(TWO_NODES)

    assert snapshots.tick(1.0) == expected
