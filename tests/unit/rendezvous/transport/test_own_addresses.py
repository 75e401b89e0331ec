import pytest

from rendezvous.transport.own_addresses import LOOPBACK, address_of, own_name_leads_to


def test_an_interface_is_asked_for_its_address() -> None:
    assert address_of("lo") == LOOPBACK

    with pytest.raises(OSError):
        address_of("none-such")


def test_the_name_of_this_host_leads_to_an_address_of_its_own() -> None:
    assert own_name_leads_to()
