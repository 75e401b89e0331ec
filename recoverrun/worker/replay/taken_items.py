"""Sources that cannot have an item back: queues, files, generators that nobody has followed.

The script's own data are worth more than other ones for a lost rank: code that would take items
from such a source is not executed once more as this rank.
"""

from recoverrun.worker.context.item_kinds import is_emptied
from recoverrun.worker.context.iterator_copy import Uncopyable
from recoverrun.worker.context.object_members import contents
from recoverrun.worker.context.slot_context import Key, member, owners_of
from recoverrun.worker.errors import NotReplayable
from recoverrun.worker.replay.influence import Influence
from recoverrun.worker.replay.known_state import named
from recoverrun.worker.tracking.microbatches import Top


class TakenForGood(NotReplayable):
    """The code would take items that cannot be put back."""


def require_put_back(top: Top, influence: Influence, own_modules: frozenset[str]) -> None:
    """Raises TakenForGood if a microbatch that begins there may take items for good."""
    lasting: set[Key] = {key for key, one in top.iterators.items() if isinstance(one, Uncopyable)}
    visible = {**top.globals, **top.names}
    lasting.update(name for name, value in visible.items() if is_emptied(value))
    for path, owner in owners_of(visible, own_modules):
        lasting.update(member(path, n) for n, v in contents(owner).items() if is_emptied(v))
    for key in sorted(lasting, key=named):
        if influence.matters(key, None):
            raise TakenForGood(f"items taken from {named(key)} cannot be put back")
