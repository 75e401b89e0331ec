"""Progress of a history of the view register once its network is healed: I4."""

from collections import Counter
from collections.abc import Iterable

from rendezvous.consensus.configuration import quorum
from tests.sim.views.book import Book
from tests.sim.views.bystander import Bystander
from tests.sim.views.node import Node
from tests.sim.views.plan import Plan
from tests.sim.views.shelf import Shelf
from tests.sim.violation import demand

PROGRESS_S = 5.0
"""Within the last seconds of a history some step must have been finished."""


def alive(
    *,
    plan: Plan,
    book: Book,
    nodes: Iterable[Node],
    beside: Bystander | Shelf | None,
    coverage: Counter[str],
    end: float,
) -> None:
    """With most of the newest voters alive, everybody is in and steps are finished."""
    newest = book.newest
    living = {n.name: n for n in nodes if n.alive and not n.leaving}
    voting = {*living}
    if isinstance(beside, Bystander) and beside.alive:
        voting.update(beside.votes)
    known = any(node.register.configuration == newest for node in living.values())
    before = book.configurations.get(newest.number - 1, newest)
    able = [v for v in newest.voters if v in living and living[v].register.settled]
    # Whoever goes on asks the voters of the newest configuration that anybody alive knows.
    asked = [newest.voters] if known else [newest.voters, before.voters]
    if plan.etcd:
        # One that has the state is enough, and it learns the newest configuration.
        able = [name for name in newest.store_holders if name in living]
        asked = []
        able = [name for name in able if living[name].register.settled]
    if not able or not all(quorum(voters, voting) for voters in asked):
        coverage["no quorum left"] += 1
        return
    coverage["liveness checked"] += 1
    out = [
        n.name
        for n in living.values()
        if n.register.configuration != newest or n.register.undecided
    ]
    demand(not out, "I4", f"{out} are not in {newest}")
    late = end - book.finished_at
    demand(late < PROGRESS_S, "I4", f"no step for {late:.1f} s in {newest}")
    last = book.finished.get(newest.number)
    demand(last is not None, "I4", f"no step in {newest}")
