"""A job forms once, with the ranks that were asked for, and tells everybody else why not."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rendezvous.membership.agreement import REFUSED_MOST
from rendezvous.membership.formation import (
    Abandoned,
    Effect,
    Formation,
    Formed,
    Joined,
    Left,
    Reply,
    Tick,
    Waiting,
)
from rendezvous.protocol.formation_messages import Join, Refusal, Start


def _formation(nnodes: int = 2, *, allow_mixed: bool = False) -> Formation:
    return Formation(
        nnodes=nnodes,
        run_id="job",
        version="1",
        master_addr="head:1",
        timeout_s=600.0,
        begun_at=0.0,
        folder="train/1-1",
        allow_mixed=allow_mixed,
    )


def _join(
    incarnation: str, node_rank: int = -1, *, nproc: int = 2, run_id: str = "job",
    version: str = "1", node: str = "", arguments: str = "",
) -> Joined:  # fmt: skip
    return Joined(
        Join(
            run_id=run_id,
            node=node or f"host-{incarnation}",
            incarnation=incarnation,
            node_rank=node_rank,
            nproc=nproc,
            version=version,
            arguments=arguments,
        )
    )


def _starts(effects: list[Effect]) -> dict[str, Start]:
    replies = [e for e in effects if isinstance(e, Reply)]
    return {e.incarnation: e.message for e in replies if isinstance(e.message, Start)}


def _refusals(effects: list[Effect]) -> dict[str, Refusal]:
    replies = [e for e in effects if isinstance(e, Reply)]
    return {e.incarnation: e.message for e in replies if isinstance(e.message, Refusal)}


def _is_told(effect: Effect) -> bool:
    return isinstance(effect, Waiting)


def _told(formation: Formation, now: float) -> list[str]:
    return [e.reason for e in formation.step(Tick(), now) if isinstance(e, Waiting)]


def test_who_is_missing_is_told_within_five_seconds_and_every_thirty() -> None:
    formation = _formation()
    formation.step(_join("a", 0), 0.1)

    assert _told(formation, 3.9) == []
    assert _told(formation, 4.0) == ["waiting for 1 of 2 nodes (node rank 1), 596 s left"]
    assert _told(formation, 33.9) == []
    assert _told(formation, 34.0) == ["waiting for 1 of 2 nodes (node rank 1), 566 s left"]
    formation.step(_join("b", 1), 40.0)
    assert formation.deadline() is None
    assert _told(formation, 64.0) == []


def test_nodes_without_a_rank_are_told_as_a_number() -> None:
    formation = _formation(4)
    formation.step(_join("a"), 0.1)
    formation.step(_join("b", 2), 0.1)

    assert _told(formation, 4.0) == ["waiting for 2 of 4 nodes, 596 s left"]


def test_nodes_that_may_come_are_told_apart_from_those_that_must() -> None:
    formation = Formation(nnodes=4, nnodes_least=1, run_id="job", version="1", master_addr="h:1",
                          timeout_s=600.0, begun_at=0.0, last_call_s=30.0)  # fmt: skip
    formation.step(_join("a"), 1.0)

    assert _told(formation, 4.0) == ["1 of 1-4 nodes are here: starting in 27 s"]


def test_the_job_starts_with_its_last_node() -> None:
    formation = _formation()

    assert formation.step(_join("a", nproc=1), 1.0) == []
    effects = formation.step(_join("b", nproc=3), 2.0)

    starts = _starts(effects)
    assert isinstance(effects[0], Formed)
    assert (starts["a"].first_rank, starts["a"].nproc) == (0, 1)
    assert (starts["b"].first_rank, starts["b"].nproc) == (1, 3)
    assert starts["a"].world_size == starts["b"].world_size == 4
    assert starts["b"].nodes == ("host-a", "host-b")
    assert formation.deadline() is None


@given(st.permutations(range(4)), st.sets(st.integers(0, 3)))
def test_given_node_ranks_are_kept_and_the_others_fill_the_gaps(
    order: list[int], given_ranks: set[int]
) -> None:
    formation = _formation(4)
    effects: list[Effect] = []
    for rank in order:
        effects = formation.step(_join(str(rank), rank if rank in given_ranks else -1), 0.0)

    starts = _starts(effects)
    assert sorted(start.node_rank for start in starts.values()) == [0, 1, 2, 3]
    assert all(starts[str(rank)].node_rank == rank for rank in given_ranks)
    others = [starts[str(rank)].node_rank for rank in order if rank not in given_ranks]
    assert others == sorted(others)


def test_a_repeated_join_changes_nothing_and_gets_the_same_start() -> None:
    formation = _formation()
    formation.step(_join("a"), 0.0)
    assert formation.step(_join("a"), 0.5) == []
    first = _starts(formation.step(_join("b"), 1.0))["a"]

    assert formation.step(_join("a"), 1.5) == [Reply("a", first)]


def test_launchers_of_one_host_get_names_of_their_own() -> None:
    formation = _formation()
    formation.step(_join("a", node="gpu"), 0.0)

    start = _starts(formation.step(_join("b", node="gpu"), 0.0))["a"]

    assert start.nodes == ("gpu.0", "gpu.1")


def test_whoever_cannot_take_part_is_told_why() -> None:
    formation = _formation()
    formation.step(_join("a", 0), 0.0)

    for joined, words, code in (
        (_join("b", run_id="other"), "serves run 'job', not 'other'", 80),
        (_join("b", version="2", arguments="other"), "all nodes need the same version", 80),
        (_join("b", 0), "node rank 0 is already taken by the launcher on host-a", 2),
        (_join("b", 2), "node rank 2 does not exist", 2),
        (_join("b", nproc=0), "0 workers per node", 2),
    ):
        refusal = _refusals(formation.step(joined, 0.0))["b"]
        assert words in refusal.reason
        assert refusal.exit_code == code
    assert _starts(formation.step(_join("c"), 0.0))


def test_those_who_wait_are_told_who_was_refused_and_why() -> None:
    formation = _formation()
    formation.step(_join("a", 0), 0.1)
    told = "host-b was refused, and told: this is recoverrun 2, the job runs 1: all nodes need"

    (waiting,) = [
        e for e in formation.step(_join("b", 1, version="2", arguments="other"), 1.0) if _is_told(e)
    ]
    again = formation.step(_join("c", 1, version="2", node="host-b", arguments="other"), 2.0)
    (end,) = [e for e in formation.step(Tick(), 600.0) if isinstance(e, Abandoned)]

    assert isinstance(waiting, Waiting) and waiting.reason.startswith(told)
    assert not any(map(_is_told, again)), "it is known"
    assert end.reason.startswith(f"1 of 2 nodes joined within 600 s (host-a); {told}")


def test_a_job_that_waits_names_few_of_many_that_it_refuses() -> None:
    formation = _formation()
    effects = [formation.step(_join(f"{n}", version="2"), 1.0) for n in range(100)]

    assert sum(any(map(_is_told, some)) for some in effects) == REFUSED_MOST


def _hindered(incarnation: str, **fields: object) -> Joined:
    join = replace(_join(incarnation, 1).join, hindrance="there is no script 't.py'")
    return Joined(replace(join, **fields))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("joined", "why", "code"),
    [
        (_hindered("b"), "there is no script 't.py'", 2),
        (_hindered("b", agreement="an etcd that it has not asked"), "there is no script 't.py'", 2),
        (
            _join("b", 1, version="2"),
            "this is recoverrun 2, the job runs 1: all nodes need the same version "
            "(or --allow-version-mismatch)",
            80,
        ),
    ],
)
def test_nobody_waits_for_a_node_of_the_job_that_cannot_come(
    joined: Joined, why: str, code: int
) -> None:
    formation = _formation()
    formation.step(_join("a", 0), 0.0)

    effects = formation.step(joined, 1.0)

    reason = f"host-b cannot take part: {why}"
    assert _refusals(effects) == {
        "b": Refusal(reason=why, exit_code=code),
        "a": Refusal(reason=reason, exit_code=code),
    }
    assert effects[-1] == Abandoned(reason, code)
    assert formation.deadline() is None


@pytest.mark.parametrize(
    "joined",
    [
        _hindered("b", script="other.py"),
        _hindered("b", arguments="other"),
        _hindered("b", run_id="other"),
        _hindered("b", node_rank=0),
    ],
)
def test_a_stranger_that_cannot_come_ends_nothing(joined: Joined) -> None:
    formation = _formation()
    formation.step(_join("a", 0), 0.0)

    assert set(_refusals(formation.step(joined, 1.0))) == {"b"}

    assert _starts(formation.step(_join("c", 1), 2.0))


def _of(script: str, joined: Joined, **fields: Any) -> Joined:
    return Joined(replace(joined.join, script=script, **fields))


@pytest.mark.parametrize("allow_mixed", [False, True])
def test_nobody_waits_for_a_node_on_which_the_name_of_the_script_is_mistyped(
    allow_mixed: bool,
) -> None:
    formation = _formation(allow_mixed=allow_mixed)
    formation.step(_of("train.py", _join("a", 0)), 0.0)

    effects = formation.step(_of("trian.py", _hindered("b")), 1.0)

    assert effects[-1] == Abandoned("host-b cannot take part: there is no script 't.py'", 2)


@pytest.mark.parametrize(
    "joined",
    [
        _of("evaluate.py", _hindered("b")),
        _of("trian.py", _hindered("b"), arguments="other"),
        _of("trian.py", _hindered("b"), role="reader"),
        _of("trian.py", _join("b", 1)),
        _of("train.py" + "y" * 100_000, _hindered("b")),
    ],
)
def test_another_script_is_mistyped_only_if_all_else_is_the_same(joined: Joined) -> None:
    formation = _formation()
    formation.step(_of("train.py", _join("a", 0)), 0.0)

    assert set(_refusals(formation.step(joined, 1.0))) == {"b"}

    assert _starts(formation.step(_of("train.py", _join("c", 1)), 2.0))


def test_a_node_that_the_job_can_do_without_ends_nothing() -> None:
    formation = Formation(
        nnodes=3, nnodes_least=2, run_id="job", version="1", master_addr="", timeout_s=600.0,
        begun_at=0.0,
    )  # fmt: skip
    formation.step(_join("a", 0), 0.0)

    told = [e.reason for e in formation.step(_hindered("b"), 1.0) if isinstance(e, Waiting)]
    assert told == ["host-b was refused, and told: there is no script 't.py'"]

    formation.step(_join("c", 2), 2.0)
    formation.step(Tick(), 2.0)
    assert formation.snapshot()["formed"]


def test_a_node_that_comes_too_late_and_cannot_take_part_waits_for_no_place() -> None:
    formation = _formation(1)
    formation.step(_join("a", 0), 0.0)

    assert formation.objection(_hindered("b", node_rank=-1).join) is not None


def test_a_complete_job_takes_nobody() -> None:
    formation = _formation(1)
    formation.step(_join("a"), 0.0)

    refusal = _refusals(formation.step(_join("b"), 0.0))["b"]

    assert refusal.reason == "the job already has all of its 1 nodes"


def test_a_launcher_that_died_while_waiting_makes_room() -> None:
    formation = _formation()
    formation.step(_join("a", 1), 0.0)
    formation.step(Left("a"), 3.0)

    assert formation.step(_join("b", 1), 4.0) == []
    assert set(_starts(formation.step(_join("c", 0), 5.0))) == {"b", "c"}


def test_a_job_that_stays_incomplete_ends_for_all_who_wait() -> None:
    formation = _formation(3)
    formation.step(_join("a"), 0.0)
    formation.step(_join("b"), 1.0)

    # Whoever waits is told so first, and again and again.
    told_at = formation.deadline()
    while told_at is not None and told_at < 600.0:
        formation.step(Tick(), told_at)
        told_at = formation.deadline()
    assert told_at == 600.0
    assert formation.step(Tick(), 599.0) == []
    effects = formation.step(Tick(), 600.0)

    reason = "2 of 3 nodes joined within 600 s (host-a, host-b)"
    assert {i: r.reason for i, r in _refusals(effects).items()} == {"a": reason, "b": reason}
    assert effects[-1] == Abandoned(reason)
    assert formation.deadline() is None


def test_nodes_get_the_ranks_of_what_they_hold_unless_one_asks_for_a_rank() -> None:
    def formed(*node_ranks: int) -> list[str]:
        formation = Formation(
            nnodes=2, run_id="job", version="1", master_addr="", timeout_s=600.0, begun_at=0.0,
            arrange=lambda nodes: list(reversed(range(len(nodes)))),
        )  # fmt: skip
        joins = [_join(name, rank) for name, rank in zip("ab", node_ranks, strict=True)]
        [formed] = [e for j in joins for e in formation.step(j, 0.0) if isinstance(e, Formed)]
        again = formation.renewed(attempt=1, restarts=0, awaited=frozenset(), begun_at=1.0)
        rejoined = [Joined(replace(j.join, attempt=1)) for j in joins]
        [later] = [e for j in rejoined for e in again.step(j, 1.0) if isinstance(e, Formed)]
        assert [join.incarnation for join in later.joins] == [j.incarnation for j in formed.joins]
        return [join.incarnation for join in formed.joins]

    assert formed(-1, -1) == ["b", "a"]
    assert formed(0, -1) == ["a", "b"]


def test_each_start_has_a_number_above_all_that_its_nodes_know() -> None:
    formation = _formation()
    starts = {"a": 0, "b": 41}
    joins = [replace(_join(name).join, starts=known) for name, known in starts.items()]

    told = [_starts(formation.step(Joined(join), 0.0)) for join in joins][-1]

    assert {start.number for start in told.values()} == {42}


def test_all_nodes_are_told_one_folder_also_in_the_next_attempt() -> None:
    formation = _formation()
    formation.step(_join("a"), 0.0)
    first = _starts(formation.step(_join("b"), 0.0))

    again = formation.renewed(attempt=1, restarts=0, awaited=frozenset({"a"}), begun_at=1.0)
    again.step(_join("a"), 1.0)
    second = _starts(again.step(_join("c"), 1.0))

    assert {start.folder for start in (*first.values(), *second.values())} == {"train/1-1"}
