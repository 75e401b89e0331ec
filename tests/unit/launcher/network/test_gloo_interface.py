"""The interface that gloo is told. Addresses of this machine are read, nothing is sent."""

import pytest

from recoverrun.config.options import read
from recoverrun.config.run_config import RunConfig, parse_options
from recoverrun.launcher.network import gloo_interface as subject
from recoverrun.launcher.network.gloo_interface import WayToOthers, gloo_interface
from rendezvous.protocol.formation_messages import Start

DEBIAN = "127.0.1.1"


@pytest.fixture(autouse=True)
def _network(monkeypatch: pytest.MonkeyPatch) -> None:
    """This host is 10.0.0.7 on ib0 to hosts of 10.0.0.*, and knows no way to others but its own."""

    def local_address(place: object) -> str:
        return {"10.0.0": "10.0.0.7", "127.0.0": "127.0.0.1"}.get(
            str(place).rpartition(".")[0], "*"
        )

    monkeypatch.setattr(subject, "local_address", local_address)
    monkeypatch.setattr(subject, "_interface_of", lambda address: {"10.0.0.7": "ib0"}[address])


def _config(host: str) -> RunConfig:
    options = read(f"--nnodes 2 --rdzv-endpoint {host}:29500 train.py".split(), {})
    assert options is not None
    return parse_options(options, {})


def _start(*peers: tuple[str, str], nnodes: int = 2) -> Start:
    return Start(
        generation=1, node_rank=0, nnodes=nnodes, first_rank=0, nproc=1, world_size=nnodes,
        master_addr="", nodes=("a", "b"), peers=tuple((*peer, 1, 1) for peer in peers),
    )  # fmt: skip


def test_the_way_to_another_node_names_the_interface() -> None:
    start = _start(("own", ""), ("other", "10.0.0.8"))

    # Its own name may be the endpoint's, and lead to the loopback interface too.
    assert gloo_interface(_config("head"), start, "own", DEBIAN, {}) == "ib0"


def test_a_node_that_knows_only_the_endpoint_goes_by_that() -> None:
    start = _start(("head", ""), ("own", "10.0.0.7"))

    assert gloo_interface(_config("10.0.0.1"), start, "own", DEBIAN, {}) == "ib0"


@pytest.mark.parametrize(
    ("taken", "environ", "host", "nnodes"),
    [
        pytest.param("192.168.1.7", {}, "10.0.0.1", 2, id="gloo-finds-its-way"),
        pytest.param(DEBIAN, {"GLOO_SOCKET_IFNAME": "eth3"}, "10.0.0.1", 2, id="the-user-knows"),
        pytest.param(DEBIAN, {}, "127.0.0.1", 2, id="all-on-this-host"),
        pytest.param(DEBIAN, {}, "10.0.0.1", 1, id="one-node"),
        pytest.param(DEBIAN, {}, "head", 2, id="no-way-is-known"),
    ],
)
def test_nothing_is_set_where_it_is_not_needed(
    taken: str, environ: dict[str, str], host: str, nnodes: int
) -> None:
    start = _start(("own", ""), nnodes=nnodes)

    assert gloo_interface(_config(host), start, "own", taken, environ) == ""


def test_the_name_of_this_host_leads_somewhere() -> None:
    assert subject.own_name_leads_to()


def test_workers_get_the_interface_and_their_user_is_told_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subject, "own_name_leads_to", lambda: DEBIAN)
    way = WayToOthers(_config("head"), "own")
    way.look_up()

    inherited, words = way.environ(_start(("own", ""), ("other", "10.0.0.8")), {"PATH": "/bin"})

    assert inherited == {"PATH": "/bin", "GLOO_SOCKET_IFNAME": "ib0"}
    assert "GLOO_SOCKET_IFNAME=ib0 is set: this host's name leads to 127.0.1.1" in words
    assert way.environ(_start(("own", ""), nnodes=1), {"PATH": "/bin"}) == ({"PATH": "/bin"}, "")


@pytest.mark.parametrize("nnodes", [1, 2])
def test_interfaces_that_this_node_does_not_have_are_told_and_nothing_is_set(
    monkeypatch: pytest.MonkeyPatch, nnodes: int
) -> None:
    monkeypatch.setattr(subject.socket, "if_nameindex", lambda: [(1, "lo"), (2, "ib0")])
    way = WayToOthers(_config("head"), "own")
    wrong = {"GLOO_SOCKET_IFNAME": "ib0,eth7"}

    inherited, words = way.environ(_start(("own", ""), nnodes=nnodes), wrong)

    assert inherited == wrong
    assert words == (
        "GLOO_SOCKET_IFNAME names eth7, and this node has lo, ib0: gloo cannot connect"
    )


def test_of_interfaces_that_are_there_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject.socket, "if_nameindex", lambda: [(1, "lo"), (2, "ib0")])
    way = WayToOthers(_config("head"), "own")
    right = {"GLOO_SOCKET_IFNAME": "ib0,lo"}

    assert way.environ(_start(("own", ""), nnodes=1), right) == (right, "")
