"""The address at which other nodes reach this process: that of the interface which gloo uses."""

import os

from rendezvous.transport.own_addresses import address_of, own_name_leads_to

VARIABLE = "GLOO_SOCKET_IFNAME"


def node_address() -> str:
    """The address of the interface that gloo was told, or takes by itself."""
    name = os.environ.get(VARIABLE, "").partition(",")[0]
    try:
        return address_of(name) if name else own_name_leads_to()
    except OSError:  # as it has an IPv6 address alone
        return own_name_leads_to()
