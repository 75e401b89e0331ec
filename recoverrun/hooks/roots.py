"""Broadcasts of the script, also those whose root is lost: who else knows what it would say?

Survivors do who have always held there what the root then said (`spokesmen.Site`), and the deputy
of rank 0, if what is sent comes of code that it executes in rank 0's place (`firsts`). Where nobody
knows, the call raises PeerLost on all of them.
"""

import inspect
import sys
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from ft_collectives.elastic import ElasticGroup
from ft_collectives.spokesmen import Site, naming_roots, roots_are_named, roots_are_spoken_for
from recoverrun.hooks import deputy
from recoverrun.hooks.handover import named, within

if TYPE_CHECKING:
    from recoverrun.hooks.session import Session

SPEAKS = "{}: in the place of lost rank {} this rank says what is broadcast there"


class Roots:
    """Wraps `dist.broadcast` and `dist.broadcast_object_list`."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        self._sites: dict[str, Site] = {}
        self._told: set[str] = set()

    def broadcast(self, original: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(original)

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if roots_are_spoken_for() or roots_are_named():
                return original(*args, **kwargs)
            group, root = _called(signature, args, kwargs)
            if group is None:
                return original(*args, **kwargs)
            caller = sys._getframe(1)
            if is_torch_itself(caller):
                group.require(root, original.__name__)
                with naming_roots():
                    return original(*args, **kwargs)
            where = f"{caller.f_code.co_filename}:{caller.f_lineno}"
            site = self._sites.setdefault(where, Site())
            tensor = kwargs.get("tensor", args[0] if args else None)
            site.call(self._does(caller, tensor, group, root))
            with naming_roots(site):
                result = original(*args, **kwargs)
            if site.stand_in == self._session.env.rank and where not in self._told:
                self._told.add(where)
                self._session.voice.notice(SPEAKS.format(where, group.ranks[root]))
            return result

        return wrapper

    def objects(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Only their root knows them: others hold what is there to be replaced."""
        signature = inspect.signature(original)

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            group, root = _called(signature, args, kwargs)
            if group is None or roots_are_spoken_for():
                return original(*args, **kwargs)
            group.require(root, original.__name__)
            with naming_roots():
                return original(*args, **kwargs)

        return wrapper

    def _does(self, caller: FrameType, tensor: Any, group: ElasticGroup, root: int) -> bool:
        """Has this rank, as the deputy, done to `tensor` what rank 0 does before it speaks?"""
        session, runtime = self._session, self._session.runtime
        if root or group.ranks[0] or not deputy.is_deputy(session):
            return False
        live = group.fabric.view.live_ranks if group.fabric is not None else ()
        if next((rank for rank in group.ranks if rank in live), None) != session.env.rank:
            return False  # another one is heard
        if any(within(caller.f_code, place) for place in runtime.left):
            return False  # what it wanted to do there has failed
        writes = [
            place
            for place, lone in runtime.places.items()
            if within(caller.f_code, place)
            and any(_is(named(caller, name), tensor) for name in lone.writes)
        ]
        return bool(writes) and runtime.missed.isdisjoint(writes)


def is_torch_itself(caller: FrameType) -> bool:
    """Does torch ask, to find its place in a group that is there? Samplers ask for the script."""
    return str(caller.f_globals.get("__name__")).startswith("torch.distributed.")


def _called(
    signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[ElasticGroup | None, int]:
    """The group of a call and its root's place there; None where torch itself must answer."""
    try:
        given = signature.bind(*args, **kwargs).arguments
    except TypeError:
        return None, 0
    group = given.get("group") or dist.GroupMember.WORLD
    if not isinstance(group, ElasticGroup):
        return None, 0
    source, place = given.get("src"), given.get("group_src")
    if place is None and source in group.ranks:
        place = group.ranks.index(source)
    if not isinstance(place, int) or not 0 <= place < len(group.ranks):
        return None, 0
    return group, place


def _is(value: Any, tensor: Any) -> bool:
    """Do both share their memory?"""
    if not isinstance(value, torch.Tensor) or not isinstance(tensor, torch.Tensor):
        return False
    mine, sent = value.untyped_storage(), tensor.untyped_storage()
    return mine.data_ptr() == sent.data_ptr() != 0
