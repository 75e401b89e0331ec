"""The wire believes nothing: what it accepts is a message, what it refuses it can explain."""

import math
import tracemalloc
import typing

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rendezvous.protocol import codec, number_bounds
from rendezvous.protocol.formation_messages import Beat
from rendezvous.protocol.messages import Committed, Exited, Message, Stop, Topology
from rendezvous.protocol.store_messages import StoreCall
from rendezvous.protocol.views import View

BEAT = {"v": codec.PROTOCOL, "k": "Beat", "node": "a", "incarnation": "b"}
STOP = {"v": codec.PROTOCOL, "k": "Stop", "exit_code": 0, "reason": "", "root_rank": -1}


def _strategy(annotation: object, name: str = "") -> st.SearchStrategy[object]:
    """Values of a field, found independently of the schema under test."""
    if annotation is int and name in number_bounds.BOUNDS:
        return st.integers(*number_bounds.BOUNDS[name])
    if annotation == tuple[int, ...] and name in number_bounds.BOUNDS:
        return st.lists(st.integers(*number_bounds.BOUNDS[name]), max_size=4).map(tuple)
    if annotation is float and name.endswith("_s"):
        return st.floats(0, number_bounds.SPAN_MOST_S)
    scalars: dict[object, st.SearchStrategy[object]] = {
        int: st.integers(-(2**63), 2**63 - 1),
        float: st.floats(allow_nan=False, allow_infinity=False),
        str: st.text(st.characters(codec="utf-8"), max_size=20),
        bytes: st.binary(max_size=20),
        bool: st.booleans(),
    }
    if annotation in scalars:
        return scalars[annotation]
    arguments = typing.get_args(annotation)
    if typing.get_origin(annotation) is typing.Literal:
        return st.sampled_from(arguments)
    if arguments[1:] == (Ellipsis,):
        return st.lists(_strategy(arguments[0]), max_size=3).map(tuple)
    return st.tuples(*map(_strategy, arguments))


def _messages() -> st.SearchStrategy[Message]:
    kinds = typing.get_args(Message)
    return st.one_of(
        *(
            st.builds(kind, **{n: _strategy(a, n) for n, a in typing.get_type_hints(kind).items()})
            for kind in kinds
        )
    )


@given(_messages())
def test_every_message_survives_the_wire(message: Message) -> None:
    assert codec.decode(codec.encode(message)) == message


@given(st.binary(max_size=200))
def test_random_bytes_are_refused_with_a_sentence(frame: bytes) -> None:
    with pytest.raises(codec.RemoteProtocolError, match=r"\w+ \w+"):
        codec.decode(frame)


@given(_messages(), st.data())
def test_a_damaged_frame_is_a_message_or_a_refusal(message: Message, data: st.DataObject) -> None:
    frame = bytearray(codec.encode(message))
    place = data.draw(st.integers(0, len(frame) - 1))
    frame[place] ^= data.draw(st.integers(1, 255))

    try:
        codec.decode(bytes(frame))
    except codec.RemoteProtocolError:
        pass


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ([1, 2], "not a map"),
        ({"k": "Beat", "node": "a"}, "must name its protocol, not None"),
        ({**BEAT, "v": "1"}, "must name its protocol, not '1'"),
        ({"v": codec.PROTOCOL, "node": "a"}, "no message of kind None"),
        ({**BEAT, "k": "Nope"}, "no message of kind 'Nope'"),
        ({**BEAT, "k": ["Beat"]}, "no message of kind"),
        ({**BEAT, "node": 1}, "Beat.node must be text, not 1"),
        ({"v": codec.PROTOCOL, "k": "Beat", "node": "a"}, "without its field 'incarnation'"),
        ({**STOP, "exit_code": True}, "must be an integer from 0 to 255, not True"),
        ({**STOP, "exit_code": 256}, "must be an integer from 0 to 255"),
        ({**STOP, "exit_code": 1.0}, "must be an integer from 0 to 255"),
        ({**STOP, "root_rank": -2}, "Stop.root_rank must be an integer from -1"),
        ({**STOP, "root_rank": 2**63}, "Stop.root_rank must be an integer from -1"),
        ({**BEAT, "node": "x" * 70_000}, "max_str_len"),
        ({**BEAT, 7: "x"}, "not msgpack as we speak it"),
        ({**BEAT, "new": msgpack.ExtType(5, b"x")}, "not msgpack as we speak it"),
        ({**BEAT, "new": msgpack.Timestamp(1, 2)}, "not msgpack as we speak it"),
        ({**BEAT, "new": [[[[[1]]]]]}, "beyond all limits"),
        ({**BEAT, "new": [0] * codec.STRANGE_ITEMS}, "beyond all limits"),
        ({**BEAT, "new": math.nan}, "beyond all limits"),
    ],
)
def test_what_is_not_in_the_schema_is_refused(content: object, words: str) -> None:
    with pytest.raises(codec.RemoteProtocolError, match=words.replace("[", r"\[")):
        codec.decode(msgpack.packb(content))


@pytest.mark.parametrize("theirs", [0, codec.PROTOCOL - 1, codec.PROTOCOL + 1, 2**70])
def test_another_protocol_is_named_with_ours(theirs: int) -> None:
    frame = msgpack.packb({**BEAT, "v": min(theirs, 2**64 - 1), "new": "what we cannot know"})

    with pytest.raises(codec.VersionMismatch, match=rf"speaks protocol \d+, .* {codec.PROTOCOL}:"):
        codec.decode(frame)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, 1e308, -1.0])
def test_seconds_are_finite_and_not_negative(number: float) -> None:
    exited = Exited(
        rank=0, incarnation=0, node="a", code=0, ours=False, error="", detected_s=number
    )

    with pytest.raises(codec.RemoteProtocolError, match="seconds from 0 to"):
        codec.decode(codec.encode(exited))


def test_nested_tuples_are_checked_item_by_item() -> None:
    topology = Topology(rank=0, generation=1, strategy="ddp", replicas=((0, 1), (2, 3)))
    content = msgpack.unpackb(codec.encode(topology))

    for replicas in ([[0, "1"]], [[0, [1]]], [0, 1], [[0, True]], {"0": 1}, "01", None):
        with pytest.raises(codec.RemoteProtocolError, match=r"Topology\.replicas must be a list"):
            codec.decode(msgpack.packb({**content, "replicas": replicas}))


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("Ready", {"rank": 1, "incarnation": -1}),
        ("Ready", {"rank": 1, "incarnation": number_bounds.COUNT_MOST + 1}),
        ("Ready", {"rank": -1, "incarnation": 0}),
        ("Arrival", {"generation": -1, "ranks": ()}),
        ("Held", {"rank": 0, "generation": 1, "step": -2}),
        ("StartAgain", {"ranks": ("0",), "birth": 1, "often": 1, "reason": ""}),
        ("StartAgain", {"ranks": (0,), "birth": 1 << 16, "often": 1, "reason": ""}),
        ("Kill", {"generation": 1, "ranks": (0,), "births": (-1,), "reason": ""}),
    ],
)
def test_who_comes_back_has_numbers_that_a_job_can_have(
    kind: str, fields: dict[str, object]
) -> None:
    with pytest.raises(codec.RemoteProtocolError, match=rf"{kind}\.\w+ must be "):
        codec.decode(msgpack.packb({"v": codec.PROTOCOL, "k": kind, **fields}))


def test_a_view_joins_nobody_unless_it_says_so() -> None:
    view = {"v": codec.PROTOCOL, "k": "View", "generation": 1, "live": (), "live_ranks": ()}

    decoded = codec.decode(msgpack.packb({**view, "losses": ()}))

    assert isinstance(decoded, View) and (decoded.joined, decoded.from_step) == ((), -1)
    with pytest.raises(codec.RemoteProtocolError, match=r"View\.from_step must be an integer"):
        codec.decode(msgpack.packb({**view, "losses": (), "joined": (1,), "from_step": -2}))


def test_a_literal_is_one_of_its_values() -> None:
    call = {
        "v": codec.PROTOCOL,
        "k": "StoreCall",
        "rank": 0,
        "serial": 1,
        "generation": 0,
        "op": "destroy",
    }

    with pytest.raises(codec.RemoteProtocolError, match=r"StoreCall\.op must be one of set, get"):
        codec.decode(msgpack.packb(call))


def test_an_unknown_field_is_ignored_and_a_default_fills_a_missing_one() -> None:
    committed = Committed(rank=0, generation=1, step=2, done=(), redone=(), total=4, digest="")
    content = msgpack.unpackb(codec.encode(committed))
    del content["phases"]

    assert codec.decode(msgpack.packb({**content, "since_2.0": {"a": [1]}})) == committed


def test_a_key_that_comes_twice_is_refused() -> None:
    with pytest.raises(codec.RemoteProtocolError, match="a key twice"):
        codec.decode(b"\x82\xa1k\xa4Beat\xa1k\xa4Beat")


@pytest.mark.parametrize(
    "bomb", [b"\x91" * 200_000, b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xdf\x7f" * 9]
)
def test_a_small_frame_cannot_ask_for_much_memory(bomb: bytes) -> None:
    with pytest.raises(codec.RemoteProtocolError):
        codec.decode(bomb)


@pytest.mark.parametrize(("empty", "words"), [(b"\x90", "262144 items"), (b"\x80", "4096 maps")])
def test_many_empty_containers_are_refused_before_they_fill_the_memory(
    empty: bytes, words: str
) -> None:
    many = b"\xdc\xff\xff" + empty * 0xFFFF
    frame = b"\x81\xa1x" + b"\x9f" + many * 15

    tracemalloc.start()
    with pytest.raises(codec.RemoteProtocolError, match=f"a frame has more than {words}"):
        codec.decode(frame)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak < 32 << 20


def test_frames_have_a_largest_size_in_both_directions() -> None:
    call = StoreCall(
        rank=0,
        serial=1,
        generation=0,
        op="set",
        keys=("k",),
        values=(bytes(codec.FRAME_BYTES),),
        amount=0,
        timeout_s=1,
    )

    with pytest.raises(codec.LocalProtocolError, match="are allowed"):
        codec.encode(call)
    with pytest.raises(codec.RemoteProtocolError, match="larger than"):
        codec.decode(bytes(codec.FRAME_BYTES + 1))


def test_an_integer_is_a_good_number_of_seconds() -> None:
    call = StoreCall(
        rank=0, serial=1, generation=0, op="wait", keys=(), values=(), amount=0, timeout_s=30
    )

    assert codec.decode(codec.encode(call)) == call


def test_what_the_peer_says_wrong_is_not_shown_at_length() -> None:
    with pytest.raises(codec.RemoteProtocolError) as refusal:
        codec.decode(msgpack.packb({**BEAT, "node": list(range(1000))}))

    assert len(str(refusal.value)) < 200


def test_messages_that_differ_are_different_frames() -> None:
    frames = {
        codec.encode(Beat(node="a", incarnation="b")),
        codec.encode(Beat(node="b", incarnation="a")),
        codec.encode(Stop(exit_code=0, reason="", root_rank=0)),
    }

    assert len(frames) == 3


def test_a_view_of_forty_thousand_ranks_is_as_small_as_its_gaps() -> None:
    ranks = tuple(rank for rank in range(40_000) if rank not in (7, 8, 39_999))
    view = View(generation=2, live=(0, 2), live_ranks=ranks, losses=(7,))

    frame = codec.encode(view)

    assert len(frame) < 100
    assert codec.decode(frame) == view


@pytest.mark.parametrize("runs", [(1,), (1, 0), (1, -1), (0, codec.ITEMS + 1), ("a", 1)])
def test_runs_that_say_nothing_or_too_much_are_refused(runs: tuple[object, ...]) -> None:
    view = {"v": codec.PROTOCOL, "k": "View", "generation": 1, "live": (), "losses": ()}

    with pytest.raises(codec.RemoteProtocolError, match="View.live_ranks must be runs"):
        codec.decode(msgpack.packb({**view, "live_ranks": runs}))
