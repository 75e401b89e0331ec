"""Rows 25-39 and 62: what a launcher with the key may say, and to what effect."""

import os
import re
import time
import tracemalloc

import pytest

from recoverrun.launcher.leadership.coordinator_host import CoordinatorHost
from recoverrun.launcher.leadership.newcomers import SPARES_MOST
from recoverrun.launcher.network.frames import NOBODY, Envelope
from rendezvous.coordinator.ledger import Ledger
from rendezvous.coordinator.recovery_policy import USUAL
from rendezvous.membership.flapping import FlappingNodes
from rendezvous.membership.formation import Formation
from rendezvous.protocol import codec
from rendezvous.protocol.exit_codes import ExitCode
from rendezvous.protocol.formation_messages import Beat, Join, Refusal, Restart, Spare, Start
from rendezvous.protocol.incarnations import incarnation
from rendezvous.protocol.messages import (
    Committed,
    ContextBuffer,
    Decision,
    Exited,
    Hello,
    Kill,
    Message,
    Report,
    Stop,
    Topology,
)
from rendezvous.protocol.records import Record
from rendezvous.protocol.store_messages import StoreAnswer, StoreCall
from rendezvous.protocol.views import View
from tests.unit.stores import lone_store

OWN, ONE, TWO = "host", "one", "two"


def _join(who: str, **fields: object) -> Join:
    join = {
        "run_id": "job", "node": f"node-{who}", "incarnation": who, "node_rank": -1, "nproc": 2,
        "version": "1", "script": "train.py", "torch": "2.13.0", "address": f"10.0.0.{len(who)}",
    }  # fmt: skip
    return Join(**{**join, **fields})  # type: ignore[arg-type]


class Table:
    """A coordinator host of a job of up to three nodes with two ranks each, and what it says."""

    def __init__(self, *, nnodes: int = 3, allow_mixed: bool = False) -> None:
        self.records: list[Record] = []
        formation = Formation(
            nnodes=nnodes, run_id="job", version="1", master_addr="", timeout_s=60, begun_at=0.0,
            allow_mixed=allow_mixed,
        )  # fmt: skip
        self.coordinator_host = CoordinatorHost(
            formation=formation, own=OWN, policy=USUAL, record=self.records.append,
            store=lone_store(), flapping_nodes=FlappingNodes(),
        )  # fmt: skip
        self.say(OWN, _join(OWN, node_rank=0))

    def say(self, sender: str, message: Message, now: float = 1.0) -> list[Envelope]:
        # Through the wire: what no peer can send proves nothing.
        return self.coordinator_host.receive(sender, codec.decode(codec.encode(message)), now)

    def form(self) -> None:
        self.say(ONE, _join(ONE))
        self.say(TWO, _join(TWO))
        assert self.members == {OWN: range(2), ONE: range(2, 4), TWO: range(4, 6)}
        self.say(OWN, Hello(rank=0, incarnation=0, pid=1, torch="2"))

    @property
    def members(self) -> dict[str, range]:
        known = self.coordinator_host._members.known
        return {name: member.ranks for name, member in known.items()}

    @property
    def state(self) -> object:
        coordinator = self.coordinator_host._coordinator
        return coordinator.snapshot() if coordinator is not None else None


def _refusal(envelopes: list[Envelope], to: str) -> str:
    """The reason in the one post that there is."""
    assert [envelope.to for envelope in envelopes] == [to], envelopes
    message = envelopes[0].message
    assert isinstance(message, Refusal), message
    return message.reason


def _exit(rank: int, incarnation: int = 0) -> Exited:
    return Exited(
        rank=rank, incarnation=incarnation, node="n", code=-9, ours=False, error="", detected_s=0
    )


@pytest.mark.parametrize(
    ("join", "words"),
    [
        pytest.param(_join(ONE, run_id="other"), "serves run 'job', not 'other'", id="row-28"),
        pytest.param(
            _join(ONE, script="eval.py"),
            r"run 'job' is train.py on node-host \(10.0.0.4\), not eval.py: another job uses",
            id="row-29",
        ),
        pytest.param(
            _join(ONE, version="2", arguments="feed"),
            "this is recoverrun 2, the job runs 1",
            id="row-27",
        ),
        pytest.param(
            _join(ONE, torch="2.5.1", arguments="feed"),
            "has torch 2.5.1, node-host .* 2.13.0",
            id="row-27",
        ),
        pytest.param(
            _join(ONE, node_rank=0),
            r"node rank 0 is already taken by the launcher on node-host \(10.0.0.4\)",
            id="row-30",
        ),
        pytest.param(_join(ONE, node_rank=0, node="node-host"), "already taken", id="row-62"),
        pytest.param(_join(ONE, nproc=10**6), "1000000 workers per node", id="row-38"),
        pytest.param(_join(ONE, nproc=0), "0 workers per node", id="row-25"),
        pytest.param(_join(ONE, node_rank=3), "node rank 3 does not exist", id="row-25"),
    ],
)
def test_a_join_that_cannot_be_is_refused_with_the_reason(join: Join, words: str) -> None:
    table = Table()

    assert re.search(words, _refusal(table.say(ONE, join), ONE))

    # And those who are there stay.
    table.form()


def test_words_of_a_node_that_cannot_come_are_safe_to_print() -> None:
    table = Table()
    envelopes = table.say(
        ONE, _join(ONE, hindrance="no script \x1b]0;owned\x07 'train.py'\n\u202e")
    )

    told = {one.to: one.message for one in envelopes}
    assert set(told) == {ONE, OWN}
    for refusal in told.values():
        assert isinstance(refusal, Refusal) and refusal.reason.isprintable()
        assert "no script" in refusal.reason and "owned" not in refusal.reason


def test_row_27_and_29_mixed_nodes_are_taken_where_the_user_means_it() -> None:
    table = Table(allow_mixed=True)
    for who, fields in ((ONE, {"torch": "2.5.1", "version": "2"}), (TWO, {"script": "eval.py"})):
        table.say(who, _join(who, **fields))

    assert set(table.members) == {OWN, ONE, TWO}


def test_row_29_other_arguments_are_remarked_on_and_roles_may_differ() -> None:
    table = Table()
    table.say(ONE, _join(ONE, arguments="feed"))
    table.say(TWO, _join(TWO, role="server", script="serve.py", arguments="beef"))

    remarks = [record.reason for record in table.records if record.event == "notice.give"]
    assert remarks == ["train.py has other arguments on node-one than on node-host"]


def test_row_62_a_second_launcher_on_a_node_gets_a_place_of_its_own_or_none() -> None:
    table = Table()
    table.say(ONE, _join(ONE, node="node-host"))
    table.say(TWO, _join(TWO))
    assert set(table.members) == {OWN, ONE, TWO}

    (envelope,) = table.say("x", _join("x"))
    assert envelope == Envelope("x", NOBODY, Spare(nnodes=3))
    assert set(table.members) == {OWN, ONE, TWO}


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(_exit(4), id="row-36-exit-of-another"),
        pytest.param(_exit(17), id="row-25-rank-beyond-the-world"),
        pytest.param(ContextBuffer(rank=4, incarnation=0, contexts=(b"x",)), id="row-36-contexts"),
        pytest.param(Hello(rank=5, incarnation=0, pid=1, torch="2"), id="row-32-rank-of-another"),
        pytest.param(
            Topology(rank=4, generation=1, strategy="ddp", replicas=((4,), (5,))),
            id="row-32-replica-of-another",
        ),
        pytest.param(
            View(generation=9, live=(0,), live_ranks=(0,), losses=(1,)), id="row-37-view"
        ),
        pytest.param(Kill(generation=1, ranks=(0, 1), births=(0, 0), reason="x"), id="row-37-kill"),
        pytest.param(
            Decision(generation=1, step=1, verdict="commit", held=1, targets=()),
            id="row-37-decision",
        ),
        pytest.param(Restart(attempt=1, reason="x", root_rank=0), id="row-37-restart"),
        pytest.param(Refusal(reason="x", exit_code=1), id="row-37-refusal"),
        pytest.param(
            Start(
                generation=1, node_rank=0, nnodes=1, first_rank=0, nproc=1, world_size=1,
                master_addr="x", nodes=("x",),
            ),
            id="row-37-start",
        ),
        pytest.param(
            StoreAnswer(rank=0, serial=1, status="ok", values=(), number=0), id="row-37-answer"
        ),
        pytest.param(
            StoreCall(
                rank=0, serial=1, generation=0, op="set", keys=("k",), values=(b"v",), amount=0,
                timeout_s=1,
            ),
            id="row-36-store-of-another",
        ),
        pytest.param(_join(TWO), id="row-36-join-of-another"),
        pytest.param(_exit(2, incarnation=incarnation(7, 0)), id="row-35-exit-of-no-attempt"),
    ],
)  # fmt: skip
def test_what_is_not_a_launchers_to_say_changes_nothing(message: Message) -> None:
    table = Table()
    table.form()
    before, records = table.state, len(table.records)

    assert table.say(ONE, message) == []

    assert table.state == before and len(table.records) == records


def test_a_stranger_is_not_heard_at_all() -> None:
    table = Table()
    table.form()

    for message in (
        _exit(0),
        Stop(exit_code=1, reason="x", root_rank=-1),
        Beat(node="n", incarnation="i"),
    ):
        assert table.say("nobody", message) == []
    assert table.coordinator_host.stopped is None


def test_row_33_a_message_of_an_old_generation_is_answered_with_the_present_view() -> None:
    table = _after_a_loss()
    report = Report(
        rank=2, generation=1, step=0, phase="compute", microbatches=1, done=(), begun=(), reduced=0
    )

    (envelope,) = table.say(ONE, report)

    assert isinstance(envelope.message, View) and envelope.message.generation == 2


def test_row_34_a_message_of_a_future_generation_changes_nothing() -> None:
    table = _after_a_loss()
    before = table.state
    report = Report(
        rank=2, generation=99, step=5, phase="settle", microbatches=1, done=((2, 0),), begun=(),
        reduced=99,
    )  # fmt: skip

    assert table.say(ONE, report) == [] and table.state == before


def _after_a_loss() -> Table:
    table = Table()
    table.form()
    replicas = tuple((rank,) for rank in range(6))
    table.say(ONE, Topology(rank=2, generation=1, strategy="ddp", replicas=replicas))
    table.say(ONE, _in_step(2, 1))  # in which all have voted
    table.say(TWO, _exit(5))
    return table


def test_row_35_what_is_said_twice_counts_once() -> None:
    table = _after_a_loss()
    before = table.state

    for _ in range(3):
        table.say(TWO, _exit(5))
        envelopes = table.say(ONE, _join(ONE))
        assert [type(envelope.message) for envelope in envelopes] == [Start]
    assert table.state == before


def test_row_35_a_launcher_that_was_given_up_is_told_so_whatever_it_says() -> None:
    table = _after_a_loss()
    table.coordinator_host.depart([(TWO, "its launcher was silent for too long")], 30.0)

    for message in (_join(TWO), Beat(node="n", incarnation=TWO), _exit(4)):
        (envelope,) = table.say(TWO, message, now=31.0)
        assert (
            isinstance(envelope.message, Stop)
            and envelope.message.exit_code == ExitCode.PARTITIONED
        )


def test_row_38_a_topology_of_a_million_replicas_is_no_frame() -> None:
    replicas = tuple((rank,) for rank in range(10**6))
    topology = Topology(rank=2, generation=1, strategy="ddp", replicas=replicas)

    with pytest.raises((codec.RemoteProtocolError, codec.LocalProtocolError)):
        codec.decode(codec.encode(topology))


@pytest.mark.rest
def test_row_39_ten_thousand_joins_leave_nothing_behind() -> None:
    table = Table()
    table.form()
    tracemalloc.start()
    began, before = time.process_time(), tracemalloc.get_traced_memory()[0]
    for _ in range(10_000):
        who = os.urandom(8).hex()
        table.say(who, _join(who))
    took, after = time.process_time() - began, tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()

    assert set(table.members) == {OWN, ONE, TWO}
    assert len(table.coordinator_host._newcomers.spares) == SPARES_MOST
    assert after - before < 1 << 20
    assert took < 10


def _in_step(rank: int, step: int, digest: str = "") -> Committed:
    return Committed(
        rank=rank, generation=1, step=step, done=((rank, 0),), redone=(), total=6, digest=digest
    )


def _committed(table: Table, *, digest: str) -> None:
    table.say(
        ONE,
        Topology(
            rank=2, generation=1, strategy="ddp", replicas=tuple((rank,) for rank in range(6))
        ),
    )
    for rank in range(6):
        host = (OWN, OWN, ONE, ONE, TWO, TWO)[rank]
        table.say(host, _in_step(rank, 0, digest if rank == 5 else "good"))


def test_row_41_replicas_that_differ_are_noticed_at_the_next_digest() -> None:
    table = Table()
    table.form()
    _committed(table, digest="good")
    assert table.coordinator_host.stopped is None

    table = Table()
    table.form()
    _committed(table, digest="flipped")

    assert (
        table.coordinator_host.stopped is not None
        and table.coordinator_host.stopped.exit_code == ExitCode.INVARIANT
    )
    assert "[[0, 1, 2, 3, 4], [5]] differ" in table.coordinator_host.stopped.reason


@pytest.mark.parametrize(
    ("done", "words"),
    [
        (((7, 0),), "not of this step"),
        (((0, 0), (1, 0)), "both computed"),
        (((1, 0), (1, 1)), "not of this step"),
    ],
)
def test_row_43_a_microbatch_that_was_not_given_makes_no_whole_step(
    done: tuple[tuple[int, int], ...], words: str
) -> None:
    ledger = Ledger(slots=(0, 1), microbatches=1)
    ledger.credit(0, ((0, 0),))
    ledger.credit(1, done)

    assert words in ledger.fault() and not ledger.whole()
