"""Sharded checkpoints (`torch.distributed.checkpoint`) of the ranks that are left.

torch has one rank gather everybody's plan, divide what several ranks hold among them, and send each
its part. A lost rank must have none: what it is to write would be missing, and nobody would know
before the checkpoint is loaded. So ranks are counted anew among those who came, and what a loss
interrupts is done again among those who are left. A part is written over by its next owner.

Followed is `_DistWrapper` of torch 2.13 (torch/distributed/checkpoint/utils.py), by which saving
and loading talk. Asynchronous saving in a thread comes this way, too.
"""

from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from ft_collectives.communicators.errors import MembersChanged
from ft_collectives.process_group.elastic import ElasticGroup
from ft_collectives.process_group.substitutes import substituting_roots
from recoverrun.worker.step.worker_state import WorkerState

PLANS = (
    "_cached_save_plan",
    "_cached_final_save_plan",
    "_cached_all_plans",
    "_cached_global_plan",
    "_cached_metadata",
)
"""What a planner keeps of the checkpoint before, by places in it (SavePlanner, a class)."""


class Checkpoints:
    """Stands around `_save_state_dict` and `_load_state_dict`."""

    def __init__(self, worker: WorkerState) -> None:
        self._worker = worker
        self._members: dict[ElasticGroup, tuple[int, ...]] = {}

    def whole(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Have `original` run among the same members from beginning to end. In code that is
        executed again it does nothing.
        """

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            given: dict[Any, Any] = dict(enumerate(args))
            given.update(kwargs)
            group = served(given.get("process_group", given.get(2)))
            if group is None or given.get("no_dist", given.get(4)):
                return original(*args, **kwargs)
            if self._worker.acting:
                return None
            while True:
                try:
                    return self._among_the_same(group, lambda: original(*args, **kwargs))
                except MembersChanged as change:
                    self._say(f"{change}: the checkpoint is begun again without them")

        return wrapper

    def _say(self, words: str) -> None:
        """One rank tells the user."""
        view = self._worker.view
        if view is not None and view.live_ranks[0] == self._worker.env.rank:
            self._worker.reporter.notice(words)

    def _among_the_same(self, group: ElasticGroup, work: Callable[[], Any]) -> Any:
        with group.among_the_same(), substituting_roots():
            members = group.present()
            if self._members.setdefault(group, members) != members:
                self._members[group] = members
                _forget_plans()
            return work()


def served(group: Any) -> ElasticGroup | None:
    """The group that is meant, if it may lose members."""
    meant = group if group is not None else dist.group.WORLD
    return meant if isinstance(meant, ElasticGroup) and meant.protected else None


def _forget_plans() -> None:
    from torch.distributed.checkpoint.planner import SavePlanner

    for name in PLANS:
        vars(SavePlanner).get(name, {}).clear()


def among_survivors(original: Any) -> Any:
    """`_DistWrapper` in which places are those among the members who came."""

    class _DistWrapper(original):  # type: ignore[misc]  # torch's own
        _present: tuple[int, ...] = ()  # their places in the group, where it may lose members

        def __init__(self, group: Any, use_dist: bool, coordinator_rank: int) -> None:
            super().__init__(group, use_dist, coordinator_rank)
            elastic = served(group) if use_dist else None
            if elastic is None:
                return
            self._present = present = elastic.present()
            coordinator = present.index(coordinator_rank) if coordinator_rank in present else 0
            self.rank = present.index(elastic.rank())
            self.coordinator_rank = coordinator
            self.global_coordinator_rank = elastic.ranks[present[coordinator]]
            self.is_coordinator = self.rank == coordinator

        def get_world_size(self) -> int:
            return len(self._present) or int(super().get_world_size())

        def gather_object(self, object: Any) -> Any:
            return self._of_those_present(super().gather_object(object))

        def all_gather_object(self, object: Any) -> Any:
            return self._of_those_present(super().all_gather_object(object))

        def scatter_object(self, object_list: Any) -> Any:
            if not self._present:
                return super().scatter_object(object_list)
            return self.broadcast_object(object_list)[self.rank]

        def _of_those_present(self, found: list[Any] | None) -> list[Any] | None:
            if found is None or not self._present:
                return found
            return [found[place] for place in self._present]

    return _DistWrapper
