"""Rows 15-25: what a member, or a broken one, may put into a frame."""

import math
from collections.abc import Iterator

import msgpack
import pytest

from rendezvous.protocol import codec
from rendezvous.protocol.formation_messages import Join
from rendezvous.protocol.messages import Exited
from rendezvous.protocol.store_messages import StoreCall
from tests.security.arena import Arena, close_stations
from tests.security.host import join_of

pytestmark = pytest.mark.e2e

BEAT = {"v": codec.PROTOCOL, "k": "Beat", "node": "a", "incarnation": "b"}
JOIN = msgpack.unpackb(codec.encode(join_of("x" * 16, "n")))
EXITED = msgpack.unpackb(
    codec.encode(
        Exited(rank=0, incarnation=0, node="n", code=1, ours=False, error="", detected_s=0.1)
    )
)


def _with(content: dict[str, object], **fields: object) -> bytes:
    return bytes(msgpack.packb({**content, **fields}))


def _without(content: dict[str, object], name: str) -> bytes:
    return bytes(msgpack.packb({key: value for key, value in content.items() if key != name}))


GOOD = bytes(msgpack.packb(BEAT))

FRAMES = [
    pytest.param(GOOD[:-1], id="row-15-truncated"),
    pytest.param(b"", id="row-15-empty"),
    pytest.param(GOOD + b"\x00", id="row-16-trailing-bytes"),
    pytest.param(b"\xdd\xff\xff\xff\xff", id="row-17-array-of-4e9"),
    pytest.param(b"\xdf\xff\xff\xff\xff", id="row-17-map-of-4e9"),
    pytest.param(b"\xc6\xff\xff\xff\xff", id="row-17-bytes-of-4e9"),
    pytest.param(b"\x91" * 100_000, id="row-18-nesting-100k"),
    pytest.param(b"\x91" * 600 + b"\xc0", id="row-19-nesting-600"),
    pytest.param(
        _with(BEAT, more=None)[:-1] + b"\x91" * 300 + b"\xc0", id="row-19-nesting-in-a-field"
    ),
    pytest.param(_with(BEAT, more=[{}] * 65_000), id="row-19-64k-empty-maps"),
    pytest.param(b"\x82\xa1k\xa4Beat\xa1k\xa4Beat", id="row-20-doubled-key"),
    pytest.param(_with(BEAT, more=msgpack.ExtType(5, b"x")), id="row-21-extension"),
    pytest.param(_with(BEAT, node=msgpack.Timestamp(1, 2)), id="row-21-timestamp"),
    pytest.param(_with(EXITED, detected_s=math.nan), id="row-22-nan"),
    pytest.param(_with(EXITED, detected_s=math.inf), id="row-22-inf"),
    pytest.param(_with(EXITED, detected_s=1e308), id="row-22-1e308"),
    pytest.param(_with(BEAT, more=math.nan), id="row-22-nan-in-a-new-field"),
    pytest.param(GOOD.replace(b"\xa1a", b"\xa1\xff"), id="row-23-utf8"),
    pytest.param(_with(BEAT, k="Destroy"), id="row-24-unknown-kind"),
    pytest.param(_without(JOIN, "node"), id="row-25-missing-key"),
    pytest.param(_with(JOIN, nproc="2"), id="row-25-wrong-type"),
    pytest.param(_with(EXITED, rank=-1), id="row-25-negative-rank"),
    pytest.param(_with(EXITED, rank=2**63), id="row-25-2**63"),
    pytest.param(_with(JOIN, nproc=-1), id="row-25-negative-count"),
]


@pytest.fixture(scope="module")
def arena(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    arena = Arena(tmp_path_factory.mktemp("arena"))
    yield arena
    close_stations()
    arena.close()


@pytest.mark.parametrize("frame", FRAMES)
def test_a_bad_frame_is_refused_with_a_sentence(frame: bytes) -> None:
    with pytest.raises(codec.RemoteProtocolError, match=r"\w+ \w+") as refusal:
        codec.decode(frame)

    assert len(str(refusal.value)) < 300


def test_rows_15_to_25_do_nothing_to_a_host_but_a_few_lines(arena: Arena) -> None:
    peer = arena.peer()
    lines = arena.good.ask()["lines_in_all"]
    with arena.attack(growth_mb=32):
        for _ in range(20):
            for parameters in FRAMES:
                peer.send(parameters.values[0])
    assert arena.complained("a message was dropped")
    assert arena.good.ask()["lines_in_all"] - lines <= len(FRAMES) + 1
    assert arena.good.ask()["joined"] == 1


def test_row_24_a_field_of_a_newer_peer_is_ignored() -> None:
    assert codec.decode(_with(BEAT, since_0_9={"a": [1, "b", None]})) == codec.decode(GOOD)


def test_what_is_sent_is_within_the_limits_of_what_is_taken() -> None:
    join = Join(run_id="r", node="n", incarnation="i", node_rank=-1, nproc=4096, version="1")
    call = StoreCall(
        rank=0, serial=1 << 62, generation=0, op="set", keys=("k",), values=(b"x",), amount=0,
        timeout_s=86400 * 365,
    )  # fmt: skip

    for message in (join, call):
        assert codec.decode(codec.encode(message)) == message
