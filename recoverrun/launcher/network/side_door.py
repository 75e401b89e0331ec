"""Another port of a launcher, for readers of its journal who know only its host and the endpoint.

Where the node at the endpoint is lost, nobody listens there. Every other launcher can also be
called at a port that follows from that of the endpoint, so `recoverrun status` finds a job by the
name of any of its nodes. Launchers call each other at a port that nobody had before: one that is
refused there has ended, and that would not be true of a port that its successor takes again.
"""

import hashlib

from recoverrun.config.option_values import Endpoint
from recoverrun.launcher.network.addresses import addresses, local_address
from rendezvous.transport.links import Hub

FIRST, PORTS = 49152, 10_000
"""Ports that no service is registered for, of those that systems hand out at the end."""

DOORS = 4
"""Launchers of one machine that can be found so: of several jobs, or of one that is being tried."""


def side_doors(endpoint: Endpoint) -> list[tuple[str, int]]:
    """Places at the host of `endpoint` where a launcher may listen whose job meets at this port."""
    digest = hashlib.sha256(f"recoverrun {endpoint.port}".encode()).digest()
    start = int.from_bytes(digest[:4], "big")
    ports = [FIRST + (start + index) % PORTS for index in range(DOORS)]
    return [(host, port) for host in addresses(endpoint.host) for port in ports]


def open_side_door(hub: Hub, endpoint: Endpoint) -> None:
    """Listen at the first of them that is free; at none if all are taken."""
    for _, port in side_doors(endpoint)[:DOORS]:
        if hub.answer_also(local_address(endpoint), port):
            return
