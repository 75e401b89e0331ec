"""Row 58 and its neighbours: names, families, several addresses, several hosts."""

import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from recoverrun.config.option_values import Endpoint
from recoverrun.config.options import read
from recoverrun.config.run_config import RunConfig, parse_options
from recoverrun.errors import RecoverrunError
from recoverrun.launcher.network import addresses
from recoverrun.launcher.network.handshake_diagnosis import unanswered
from rendezvous.protocol.formation_messages import Beat, Join
from tests.e2e.launching import Launcher, free_port, launching
from tests.security.arena import Peer, close_stations, opened
from tests.security.host import join_of

pytestmark = pytest.mark.e2e


def _config(*options: str) -> RunConfig:
    found = read(["--nnodes=2", *options, "train.py"], {})
    assert found is not None
    return parse_options(found, {})


def _written(*options: str) -> list[str]:
    return [str(endpoint) for endpoint in _config(*options).endpoints]


Names = Callable[[dict[str, list[str]]], None]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    """Have names lead to addresses."""
    real = socket.getaddrinfo

    def install(table: dict[str, list[str]]) -> None:
        def lookup(
            host: str, port: int | None, family: int = 0, type: int = 0, flags: int = 0
        ) -> list[tuple[Any, ...]]:
            found = table.get(host, [host])
            if not found:
                raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
            return [info for each in found for info in real(each, port, family, type, 0, flags)]

        monkeypatch.setattr(socket, "getaddrinfo", lookup)

    return install


def test_row_58_hosts_and_families_as_users_write_them() -> None:
    assert _written("--rdzv-endpoint=a:1") == ["a:1"]
    assert _written("--rdzv-endpoint=a:1,b,[fe80::1%br-0.7]:2", "--rdzv-backend=c10d") == [
        "a:1", "b:29400", "[fe80::1%br-0.7]:2",
    ]  # fmt: skip
    assert _written("--rdzv-endpoint=[::1]") == ["[::1]:29500"]
    assert _written("--master-addr=::1", "--master-port=7") == ["[::1]:7"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("::1", r"an IPv6 address needs brackets, \[::1\] or \[::1\]:PORT"),
        ("fe80::1:29400", "an IPv6 address needs brackets"),
        ("a:1,", "must be host:port, not ''"),
        ("a:b", "must be host:port"),
        ("a:1:2", "brackets"),
        ("a b:1", "must be host:port"),
        ("a:0", "port 0 means any"),
        ("a:99999", "there is no port 99999"),
        ("http://a:1", "brackets|host:port"),
    ],
)
def test_row_58_what_cannot_be_an_endpoint_is_a_usage_error(text: str, words: str) -> None:
    with pytest.raises(RecoverrunError, match=words) as refusal:
        _config(f"--rdzv-endpoint={text}")
    assert refusal.value.exit_code == 2


def test_row_58_a_link_local_address_keeps_its_interface() -> None:
    assert addresses.addresses("fe80::1%lo") == ["fe80::1%lo"]


@pytest.mark.parametrize("host", ["fe80::1", "fe80::1%none-such"])
def test_row_58_a_link_local_address_without_an_interface_is_explained(host: str) -> None:
    with pytest.raises(RecoverrunError, match=r"needs an interface of this node, as in \[fe80::1%"):
        addresses.open_hub(opened(), _config(f"--rdzv-endpoint=[{host}]:{free_port()}"))

    close_stations()


def test_row_58_an_unknown_name_is_named(names: Names) -> None:
    names({"gpu-o1": []})
    places = (Endpoint(host="gpu-o1", port=1), Endpoint(host="127.0.0.1", port=2))

    sentence = unanswered(places, 5.0)

    assert "nobody answered at gpu-o1:1, 127.0.0.1:2 within 5 s" in sentence
    assert "no address is known here for gpu-o1: is the name right?" in sentence
    assert "node rank 0 running" in unanswered(places[1:], 5.0)


def test_row_58_a_program_that_listens_and_says_nothing_is_not_taken_for_nobody() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = Endpoint(host="127.0.0.1", port=other.getsockname()[1])
        free = Endpoint(host="127.0.0.1", port=free_port())

        sentence = unanswered((free, taken), 5.0)

    assert sentence == (
        f"what listens at {taken} has not answered as a launcher does within 5 s: is the port "
        "right, or does another program have it?"
    )


def test_row_58_a_host_with_several_addresses_listens_at_the_one_that_is_here(
    names: Names,
) -> None:
    names({"multi": ["192.0.2.7", "127.0.0.1"]})
    port = free_port()

    hub = addresses.open_hub(opened(), _config(f"--rdzv-endpoint=multi:{port}", "--node-rank=0"))

    assert hub is not None and hub.port == port
    socket.create_connection(("127.0.0.1", port), 5).close()
    close_stations()


@pytest.mark.rest
def test_row_58_a_caller_tries_all_addresses_one_after_the_other(names: Names) -> None:
    names({"multi": ["127.0.0.2", "127.0.0.3", "127.0.0.1"]})
    host, guest = opened(), opened()
    hub = host.listen_tcp("127.0.0.1", 0)

    Peer(guest, hub.port, "multi").send(b"found you")

    incoming = None
    while incoming is None:
        host.wait(1.0)
        incoming = hub.receive()
    assert incoming.frames == (b"found you",)
    close_stations()


def test_row_58_a_message_shows_whence_it_came_and_that_becomes_the_address() -> None:
    host, guest = opened(), opened()
    hub = host.listen_tcp("127.0.0.1", 0)
    Peer(guest, hub.port).send(b"here")
    incoming = None
    while incoming is None:
        host.wait(1.0)
        incoming = hub.receive()
    close_stations()

    join = join_of("x" * 16, "n")
    assert incoming.address == "127.0.0.1"
    assert addresses.located(join, "10.1.2.3") == _placed(join, "", "10.1.2.3")
    open_join = _placed(join, ":29500", "")
    assert addresses.located(open_join, "10.1.2.3") == _placed(join, "10.1.2.3:29500", "10.1.2.3")
    given = _placed(join, "fast-net:29500", "forged")
    assert addresses.located(given, "10.1.2.3") == _placed(join, "fast-net:29500", "10.1.2.3")
    beat = Beat(node="n", incarnation="i")
    assert addresses.located(beat, "10.1.2.3") == beat


def _placed(join: Join, master: str, address: str) -> Join:
    return replace(join, master=master, address=address)


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    with launching(tmp_path) as launcher:
        yield launcher


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not _has_ipv6(), reason="this machine has no IPv6")
@pytest.mark.parametrize("backend", ["static", "c10d"])
def test_row_58_two_nodes_meet_over_ipv6(launcher: Launcher, backend: str) -> None:
    port = free_port()
    jobs = [
        launcher.fake(
            "*:hello exit=0",
            options=(
                "--nnodes=2", f"--node-rank={node}", f"--rdzv-backend={backend}",
                f"--rdzv-endpoint=[::1]:{port}",
            ),
        )
        for node in range(2)
    ]  # fmt: skip

    assert [job.finish() for job in jobs] == [0, 0]


@pytest.mark.rest
@pytest.mark.parametrize("backend", ["static", "c10d"])
def test_row_58_nodes_meet_at_the_first_of_several_hosts_that_is_there(
    launcher: Launcher, backend: str
) -> None:
    ports = free_port(), free_port()
    # Nobody is at the second address; who starts there looks on.
    here, there = f"127.0.0.1:{ports[0]}", f"127.0.0.9:{ports[1]}"
    orders = (f"{here},{there}", f"{there},{here}" if backend == "static" else f"{here},{there}")
    jobs = [
        launcher.fake(
            "*:hello exit=0",
            options=(
                "--nnodes=2", f"--node-rank={node}", f"--rdzv-backend={backend}",
                f"--rdzv-endpoint={order}",
            ),
        )
        for node, order in enumerate(orders)
    ]  # fmt: skip

    assert [job.finish() for job in jobs] == [0, 0]
