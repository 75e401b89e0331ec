"""One trial of each kind: a job, a fault, and how long it took the survivors to go on."""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from rendezvous.protocol.exit_codes import ExitCode
from rendezvous.protocol.heartbeat import QUICK
from tests.chaos.net import Net, net
from tests.e2e.launching import ROOT, Launcher
from tests.e2e.nodes import Nodes

FLAP_S = 1.2
"""A pause that nobody may be left out for."""

LINK_FLAPS_S = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0)
"""So long a link may be gone: nobody may be left out for it."""

HOUR_S = 3600.0

OPEN = ("--key-file=none",)
"""Hosts of their own have no key in common."""

IN_TURN_S = 2.0
"""The longest gap between launchers that are killed one after another."""

Trial = Callable[[Launcher], float]
"""Returns the seconds from the fault until every survivor is in a view without the lost."""


class Kept(AssertionError):
    """Somebody was left out who should not have been."""


def _lose(launcher: Launcher, many: int, lost: list[int], number: signal.Signals) -> float:
    nodes = Nodes(launcher, many)
    survivors = [rank for rank in range(many) if rank not in lost]
    struck_at = time.monotonic()
    for rank in lost:
        nodes.launches[rank].send(number)
    try:
        _, met_at = nodes.survivors_meet(survivors)
    finally:
        if number == signal.SIGSTOP:
            for rank in lost:
                nodes.launches[rank].send(signal.SIGCONT)
    if number == signal.SIGSTOP:
        codes = [nodes.launches[rank].finish() for rank in lost]
        assert codes == [ExitCode.PARTITIONED] * len(lost), codes
    nodes.stop(survivors)
    return met_at - struck_at


def leader_killed(launcher: Launcher) -> float:
    return _lose(launcher, 3, [0], signal.SIGKILL)


def member_killed(launcher: Launcher) -> float:
    return _lose(launcher, 3, [2], signal.SIGKILL)


def leader_of_two_killed(launcher: Launcher) -> float:
    return _lose(launcher, 2, [0], signal.SIGKILL)


def two_of_five_killed(launcher: Launcher) -> float:
    return _lose(launcher, 5, [0, 3], signal.SIGKILL)


def leader_stopped(launcher: Launcher) -> float:
    return _lose(launcher, 3, [0], signal.SIGSTOP)


def member_stopped(launcher: Launcher) -> float:
    return _lose(launcher, 3, [1], signal.SIGSTOP)


def leader_with_its_tree_killed(launcher: Launcher) -> float:
    nodes = Nodes(launcher, 3)
    root = psutil.Process(nodes.launches[0].pid)
    tree = [root, *root.children(recursive=True)]
    nodes.launches[0].killed = True
    struck_at = time.monotonic()
    for process in tree:
        process.kill()
    _, met_at = nodes.survivors_meet([1, 2])
    nodes.stop([1, 2])
    return met_at - struck_at


def killed_in_turn(launcher: Launcher) -> float:
    """Three of four launchers are killed, one after another in any order: the last goes on."""
    nodes = Nodes(launcher, 4)
    *lost, last = random.sample(range(4), 4)
    for rank in lost:
        time.sleep(random.uniform(0.0, IN_TURN_S))  # the length of the gap is what is tested
        struck_at = time.monotonic()
        nodes.launches[rank].send(signal.SIGKILL)
    try:
        _, met_at = nodes.survivors_meet([last])
    except AssertionError as error:
        raise AssertionError(f"killed in turn: {lost}\n{error}") from error
    nodes.stop([last])
    return met_at - struck_at


def flap(launcher: Launcher) -> float:
    """Every launcher in turn stands still for a moment: nobody is left out."""
    nodes = Nodes(launcher, 3)
    for launch in nodes.launches:
        launch.send(signal.SIGSTOP)
        time.sleep(FLAP_S)  # the length of the pause is what is tested
        launch.send(signal.SIGCONT)
    _nobody_left(nodes)
    return 0.0


def starved(launcher: Launcher) -> float:
    """Others want the processors, all of them, for some seconds: nobody is left out."""
    nodes = Nodes(launcher, 3)
    spin = "import time\nuntil = time.monotonic() + 6\nwhile time.monotonic() < until: pass"
    many = 4 * (os.cpu_count() or 1)
    greedy = [subprocess.Popen([sys.executable, "-c", spin]) for _ in range(many)]
    for process in greedy:
        process.wait()
    _nobody_left(nodes)
    return 0.0


def clocks_set(launcher: Launcher) -> float:
    """Wall clocks an hour apart, which are set while the job runs: nothing follows but a loss."""
    with tempfile.TemporaryDirectory(prefix="clocks-") as folder:
        clocks = [Path(folder, str(rank)) for rank in range(3)]

        def env(rank: int) -> dict[str, str]:
            path = os.pathsep.join([str(ROOT), str(ROOT / "tests/chaos/clock")])
            return {"PYTHONPATH": path, "CHAOS_CLOCK": str(clocks[rank])}

        for clock, ahead in zip(clocks, (0, HOUR_S, -HOUR_S), strict=True):
            clock.write_text(str(ahead))
        nodes = Nodes(launcher, 3, env=env)
        for ahead in (HOUR_S, -HOUR_S, 30.0):
            for clock in clocks:
                clock.write_text(str(ahead))
                time.sleep(0.3)  # so that a beat of the others falls in between
        struck_at = time.monotonic()
        nodes.launches[2].send(signal.SIGKILL)
        generation, met_at = nodes.survivors_meet([0, 1])
        nodes.stop([0, 1])
        begun = [launch.records("run.start")[0]["ts"] for launch in nodes.launches[:2]]
        assert begun[1] - begun[0] > HOUR_S / 2, f"the clocks were not set: {begun}"
        if generation != 2:
            raise Kept(f"generation {generation} after one loss")
    return met_at - struck_at


def _nobody_left(nodes: Nodes) -> None:
    nodes.stop([0, 1, 2])
    for launch in nodes.launches:
        if ": view " in launch.output:
            raise Kept(launch.output)


def _cut(launcher: Launcher, cut: Callable[[Net], None], lost: int) -> float:
    """A host of three loses the others; it must stop by itself, and they go on."""
    with net(3, f"rr{os.getpid()}") as hosts:
        nodes = Nodes(launcher, 3, host=hosts.host(0), extra=OPEN, within=hosts.within)
        survivors = [rank for rank in range(3) if rank != lost]
        struck_at = time.monotonic()
        cut(hosts)
        _, met_at = nodes.survivors_meet(survivors)
        assert nodes.launches[lost].finish() == ExitCode.PARTITIONED
        nodes.stop(survivors)
    return met_at - struck_at


def link_flaps(launcher: Launcher) -> float:
    """The links of two of three hosts, the leader's first, are gone for longer and longer."""
    with net(3, f"rr{os.getpid()}") as hosts:
        nodes = Nodes(launcher, 3, host=hosts.host(0), extra=OPEN, within=hosts.within)
        for for_s in LINK_FLAPS_S:
            for rank in (0, 2):
                hosts.unplug(rank)
                time.sleep(for_s)  # the length of the flap is what is tested
                hosts.plug(rank)
                time.sleep(QUICK.silent_s)  # after that it would have been left out
        _nobody_left(nodes)
    return 0.0


def leader_cut_off(launcher: Launcher) -> float:
    return _cut(launcher, lambda hosts: hosts.cut(0), 0)


def member_cut_off(launcher: Launcher) -> float:
    return _cut(launcher, lambda hosts: hosts.cut(2), 2)


def leader_deaf(launcher: Launcher) -> float:
    return _cut(launcher, lambda hosts: hosts.deafen(0), 0)


TRIALS: dict[str, Trial] = {
    "leader killed": leader_killed,
    "leader killed, with its tree": leader_with_its_tree_killed,
    "leader of two killed": leader_of_two_killed,
    "member killed": member_killed,
    "two of five killed, the leader among them": two_of_five_killed,
    "three of four killed in turn, gaps of 0 to 2 s": killed_in_turn,
    "leader stands still": leader_stopped,
    "member stands still": member_stopped,
    "leader's link cut": leader_cut_off,
    "member's link cut": member_cut_off,
    "leader hears nothing": leader_deaf,
    "wall clocks an hour apart, set as it runs; a kill": clocks_set,
    "each stands still for 1.2 s: nobody is left out": flap,
    "links are gone for 0.5 to 3 s: nobody is left out": link_flaps,
    "processors taken for 6 s: nobody is left out": starved,
}

ALONE = (starved,)
"""Trials that would disturb any other that runs at the same time."""

LONG = (link_flaps, starved)
"""Trials of a minute, or of all processors."""

COLD = (clocks_set,)
"""Trials whose launchers import something first, which a fork of a template would not."""
