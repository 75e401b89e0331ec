import socket

import pytest

from rendezvous.transport.own_addresses import (
    LOOPBACK,
    address_in,
    address_of,
    own_name_leads_to,
    socket_name,
)


def test_an_interface_is_asked_for_its_address() -> None:
    assert address_of("lo") == LOOPBACK

    with pytest.raises(OSError):
        address_of("none-such")


def test_the_name_of_this_host_leads_to_an_address_of_its_own() -> None:
    assert own_name_leads_to()


def test_a_socket_is_given_the_interface_of_a_link_local_address_and_tells_it() -> None:
    name = socket_name("fe80::1%lo", 80)

    assert name == ("fe80::1", 80, 0, socket.if_nametoindex("lo"))
    assert address_in(name) == "fe80::1%lo"


def test_what_is_no_address_has_no_name_for_a_socket() -> None:
    assert socket_name("127.0.0.1", 80) == ("127.0.0.1", 80)

    with pytest.raises(OSError):
        socket_name("fe80::1%none-such", 80)
