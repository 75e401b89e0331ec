"""Hosts of their own: network namespaces on one switch, with links that can be cut. Needs root."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


class Net:
    """`many` hosts 10.77.0.1, 10.77.0.2, … each in a namespace."""

    def __init__(self, many: int, mark: str) -> None:
        self.many = many
        self._mark = mark

    def host(self, rank: int) -> str:
        return f"10.77.0.{rank + 1}"

    def within(self, rank: int) -> tuple[str, ...]:
        """The command that runs another one on that host."""
        return ("ip", "netns", "exec", self._space(rank))

    def cut(self, rank: int) -> None:
        """Take the link of a host down, in both directions."""
        _ip("-n", self._switch, "link", "set", f"p{rank}", "down")

    def unplug(self, rank: int) -> None:
        """Have the switch drop all frames to and from that host, whose carrier stays."""
        _ip("-n", self._switch, "link", "set", f"p{rank}", "nomaster")

    def plug(self, rank: int) -> None:
        """Connect that host with the switch (again)."""
        _ip("-n", self._switch, "link", "set", f"p{rank}", "master", "hub", "up")

    def deafen(self, rank: int) -> None:
        """From now on the switch gives that host nothing, while what it sends still arrives."""
        nothing = [
            word
            for what in ("learning", "flood", "mcast_flood", "bcast_flood")
            for word in (what, "off")
        ]
        port = ("-n", self._switch, "link", "set", f"p{rank}", "type", "bridge_slave")
        _ip(*port, *nothing, "fdb_flush")

    def isolate(self, *ranks: int) -> None:
        """From now on the switch gives these hosts nothing from each other; others reach them."""
        for rank in ranks:
            port = ("-n", self._switch, "link", "set", f"p{rank}", "type", "bridge_slave")
            _ip(*port, "isolated", "on")

    def _space(self, rank: int) -> str:
        return f"{self._mark}-{rank}"

    @property
    def _switch(self) -> str:
        return f"{self._mark}-switch"

    def _build(self) -> None:
        _ip("netns", "add", self._switch)
        _ip("-n", self._switch, "link", "add", "hub", "type", "bridge")
        _ip("-n", self._switch, "link", "set", "hub", "up")
        for rank in range(self.many):
            space = self._space(rank)
            _ip("netns", "add", space)
            _ip("-n", self._switch, "link", "add", f"p{rank}", "type", "veth", "peer", "name",
                "eth0", "netns", space)  # fmt: skip
            self.plug(rank)
            _ip("-n", space, "addr", "add", f"{self.host(rank)}/24", "dev", "eth0")
            _ip("-n", space, "link", "set", "eth0", "up")
            _ip("-n", space, "link", "set", "lo", "up")

    def _remove(self) -> None:
        for space in (*(self._space(rank) for rank in range(self.many)), self._switch):
            subprocess.run(["ip", "netns", "del", space], capture_output=True, check=False)


@contextmanager
def net(many: int, mark: str) -> Iterator[Net]:
    built = Net(many, mark)
    try:
        built._build()
        yield built
    finally:
        built._remove()
