"""The substitution of a lost rank's values for ours, while its microbatch is executed here.

Variables and attributes that differ, lists that were changed in place since the iteration began,
large data and shares of data, and copies of the script's plain iterators. `revert` puts all back.
"""

import operator
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from recoverrun.worker.context.attached_state import ABSENT, ATTACHED, noted
from recoverrun.worker.context.attached_state import CONTAINERS as FOLLOWED
from recoverrun.worker.context.fingerprints import find as find_bulk
from recoverrun.worker.context.fingerprints import is_mark
from recoverrun.worker.context.iterator_copy import Uncopyable, copied_iterator
from recoverrun.worker.context.member_views import ORDER
from recoverrun.worker.context.namespaces import held, hold, put_back
from recoverrun.worker.context.object_members import contents, is_framework, members, resolve, spelt
from recoverrun.worker.context.slot_context import (
    Context,
    Key,
    Path,
    belongs_to_process,
    owners_of,
    unmarked,
)
from recoverrun.worker.context.values import copied as copied_value
from recoverrun.worker.context.values import put, same
from recoverrun.worker.data.generator_source import GivenItem
from recoverrun.worker.errors import NotReplayable
from recoverrun.worker.replay.influence import Influence, Modules
from recoverrun.worker.replay.known_state import UNTOLD, named
from recoverrun.worker.replay.local_shards import LocalShards
from recoverrun.worker.replay.shared_cells import FilledCell, fill
from recoverrun.worker.rng.host_streams import read_hosts
from recoverrun.worker.rng.registry import REGISTRY
from recoverrun.worker.rng.skip_ahead import skip_ahead
from recoverrun.worker.rng.streams import Streams, read_streams, restore_streams
from recoverrun.worker.tracking.microbatches import CONTAINERS, Top


@dataclass(slots=True)
class UndoRecord:
    """The changes of a re-execution that have to be put back."""

    streams: Streams
    generators: dict[str, Any]
    globals: dict[str, Any] | None = None
    changed_globals: dict[str, Any] = field(default_factory=dict)
    deleted_globals: list[str] = field(default_factory=list)
    attributes: list[tuple[Any, dict[str, Any]]] = field(default_factory=list)
    filled: list[tuple[Any, Any]] = field(default_factory=list)
    written: list[tuple[dict[str, Any], str, Any]] = field(default_factory=list)
    cells: list[FilledCell] = field(default_factory=list)
    owners: set[int] = field(default_factory=set)  # whose attributes are noted, by identity

    def note_owner(self, owner: Any) -> None:
        """Note the members of an owner that are about to be changed."""
        if id(owner) not in self.owners:
            self.owners.add(id(owner))
            self.attributes.append((owner, contents(owner)))

    def note(self, container: Any) -> None:
        """Note the content of a list, dict or set that the code is about to work on."""
        self.filled.append((container, container.copy()))

    def fill(self, present: Any, value: Any) -> bool:
        """Give a list, deque or set its content where it lies: closures and other names see it,
        too. False if it is none, or another kind of value.
        """
        if type(present) is not type(value) or type(present) not in FILLED:
            return False
        self.filled.append((present, list(present)))
        _fill(present, copied_value(value))
        return True

    def refill(self) -> None:
        """Give filled cells and containers back what they held."""
        for cell in self.cells:
            cell.put_back()
        for container, content in reversed(self.filled):
            if not _holds(container, content):
                _fill(container, content)


FILLED = (list, deque, set)


def _fill(container: Any, content: Iterable[Any]) -> None:
    container.clear()
    (container.update if isinstance(container, dict | set) else container.extend)(content)


def _set(attributes: dict[str, Any], name: str, value: Any) -> None:
    if value is ABSENT:
        attributes.pop(name, None)
    else:
        attributes[name] = value


def _holds(container: Any, content: Any) -> bool:
    """True if it holds the very objects that `content` does, in the same order."""
    if len(container) != len(content):
        return False
    parts = [(container, content)]
    if isinstance(content, dict):
        parts.append((container.values(), content.values()))
    return all(all(map(operator.is_, now, before)) for now, before in parts)


class Substitution:
    """Changes namespaces and objects of the script, and notes in a `UndoRecord` what they were."""

    def __init__(self, script: Modules, influence: Influence, shares: LocalShards) -> None:
        self._script = script
        self._influence = influence
        self._shares = shares

    def namespace(self, top: Top, undo: UndoRecord) -> dict[str, Any]:
        """The names in which the region runs. Code at module level needs the true globals:
        functions that it calls read them.

        Lists, dicts and sets are the script's own, as a hook or an object may hold the same one,
        and the code works on it through either. What the region binds itself is as it was when the
        iteration began.
        """
        names = dict(top.names)
        for name, value in top.names.items():
            bound = name in top.loop.carried
            shared = top.containers.get(name) if bound else value
            if type(shared) in CONTAINERS:
                undo.note(shared)
                names[name] = shared
                if bound:
                    _fill(shared, value)
            elif bound and type(value) in CONTAINERS:
                names[name] = value.copy()
        undo.cells = fill(top, names, self._script.own_modules)
        if top.loop.module_level:
            top.globals.update(names)
            return top.globals
        return {**top.globals, **names}

    def apply(self, top: Top, theirs: Mapping[Key, Any], undo: UndoRecord) -> dict[str, Any]:
        """Put values of another rank in place; returns the names in which the region runs."""
        module = top.globals
        if top.loop.module_level:
            undo.globals = dict(module)
        for one, then in top.iterator_lists:  # the body may have made another iterator
            undo.filled.append((one, one[:]))
            one[:] = then
        names = self.namespace(top, undo)
        visible = {**module, **top.names}
        for _, owner in owners_of(visible, self._script.own_modules):
            undo.note_owner(owner)
        attributes: dict[Any, Any] = {k: v for k, v in top.attributes.items() if k not in theirs}
        attributes.update({k: v for k, v in theirs.items() if not isinstance(k, str)})
        spaces = [visible, {**module, **names}]  # the former has what the region binds as copies
        for path, value in attributes.items():
            value = self._held(path, value, theirs, visible)
            for owner in _distinct(resolve(space, path) for space in spaces):
                undo.note_owner(owner)  # a dict may have grown too long to be found as one
                held = members(owner)
                if path[-1] == ORDER or not undo.fill(held.get(path[-1]), value):
                    put(held, path[-1], value)
        self._unwrite(top, undo)
        self.regroup(top, undo)
        variables = {k: v for k, v in theirs.items() if isinstance(k, str)}
        variables.update(self._moved(top, names, theirs))
        for name in sorted(variables.keys() - top.loop.targets):
            if undo.fill(names.get(name), variables[name]):
                continue
            put(names, name, variables[name])
            if name not in top.names and names is not module and not is_mark(name):
                if name in module:
                    undo.changed_globals[name] = module[name]
                else:
                    undo.deleted_globals.append(name)
                module[name] = names[name]  # functions that the region calls read it there
        return names

    def _held(
        self, path: Path, value: Any, theirs: Mapping[Key, Any], visible: Mapping[str, Any]
    ) -> Any:
        """`value`; of the keys of another rank's dict those that this process holds, or was told
        of. What belongs to a process (`gpu_memory`) is not told.

        Raises NotReplayable if nothing was told of another entry.
        """
        owner = resolve(visible, path)
        if path[-1] != ORDER or owner is None:
            return value
        present, lacking = members(owner), []
        for key in value:
            entry = (*path[:-1], f"[{key!r}]")
            if entry in theirs or entry[-1] in present:
                continue
            if belongs_to_process(entry[-1]):
                lacking.append(key)
            elif self._influence.matters(entry, None):
                raise NotReplayable(f"another rank holds {spelt(entry)}, and this one does not")
        return [key for key in value if key not in lacking] if lacking else value

    def _moved(
        self, top: Top, names: Mapping[str, Any], theirs: Mapping[Key, Any]
    ) -> dict[str, Any]:
        """Values that were alike as the iteration began, and have changed since: lists in place,
        and what a function of the script has given to a variable of its module.
        """
        assert top.context is not None, "captured as it began"
        return {
            name: value
            for name, value in top.context.names.items()
            if (type(value) in FILLED or not (name in top.names or isinstance(value, torch.Tensor)))
            and name not in theirs
            and not same(names.get(name), value)
        }

    def find(
        self,
        rank: int,
        top: Top,
        theirs: Mapping[Key, Any],
        names: dict[str, Any],
        undo: UndoRecord,
    ) -> None:
        """Put large data of `rank` in place, if this process holds them, too; what it has told of
        its share of the data comes by `share`.

        Raises NotReplayable if it does not, and they may matter.
        """
        visible = {**top.globals, **names}
        shares = self._shares.of(rank, {**top.globals, **top.names})
        for key, mark in theirs.items():
            path = (key,) if isinstance(key, str) else key
            if not is_mark(path[-1]) or not self._influence.matters(key, mark):
                continue
            if unmarked(key) in shares:
                continue
            name = path[-1].removesuffix("#")
            owner = resolve(visible, path) if path[1:] else None
            if path[1:] and owner is None:
                continue
            value = find_bulk(mark, visible if owner is None else members(owner))
            if value is None:
                where = named(key).removesuffix("#")
                raise NotReplayable(f"another rank holds other data in {where} than this one")
            if owner is not None:
                members(owner)[name] = value
            else:
                names[name] = value
                if name not in top.names and names is not top.globals:
                    undo.changed_globals.setdefault(name, top.globals[name])
                    top.globals[name] = value

    @staticmethod
    def _unwrite(top: Top, undo: UndoRecord) -> None:
        """Attributes of modules that were first written in this iteration are as they were then:
        its context could not hold them.
        """
        for module, name, before in ATTACHED.unwritten(top.first_writes):
            attributes = vars(module)
            present = attributes.get(name, ABSENT)
            value: Any = before if before is ABSENT else noted(before)
            if type(present) is type(value) and type(value) in FOLLOWED - {tuple}:
                undo.note(present)
                _fill(present, value)
                continue
            undo.written.append((attributes, name, present))
            _set(attributes, name, value)

    @staticmethod
    def regroup(top: Top, undo: UndoRecord) -> None:
        """Optimizers get the groups that they had: the code may be about to add one."""
        for optimizer, groups in top.groups:
            undo.filled.append((optimizer.param_groups, optimizer.param_groups[:]))
            optimizer.param_groups[:] = groups

    def revert(self, top: Top, undo: UndoRecord) -> None:
        """Put all back that was changed."""
        module = top.globals
        if undo.globals is not None:
            put_back(module, undo.globals)
        module.update(undo.changed_globals)
        for name in undo.deleted_globals:
            module.pop(name, None)
        for owner, attributes in undo.attributes:
            put_back(members(owner), attributes)
        for attributes, name, value in undo.written:
            _set(attributes, name, value)
        undo.refill()
        REGISTRY.restore(undo.generators)
        restore_streams(undo.streams)

    def require_copies(self, top: Top) -> None:
        """Raises NotReplayable if an iterator matters that cannot be copied."""
        for key, copy in top.iterators.items():
            if isinstance(copy, Uncopyable) and self._influence.matters(key, None):
                raise NotReplayable(f"{named(key)} is an iterator that no other rank can read here")

    def lend(self, names: dict[str, Any], top: Top, undo: UndoRecord) -> None:
        """Give re-executed code copies of the script's plain iterators, and then the functions that
        share variables with it what has become of these.
        """
        module = top.globals
        lent = {key: copied_iterator(kept) for key, kept in top.iterators.items()}
        hold(names, {key: one for key, one in lent.items() if not isinstance(one, Uncopyable)})
        for key in lent:
            if isinstance(key, str) and key in module and names is not module:
                undo.changed_globals.setdefault(key, module[key])
                module[key] = names[key]  # functions that the region calls read it there
        for cell in undo.cells:
            cell.follow(names)

    @contextmanager
    def as_ourselves(self, top: Top) -> Iterator[dict[str, Any]]:
        """The names in which a body is executed on fresh data of our own; then all is put back."""
        saved = dict(top.globals) if top.loop.module_level else None
        undo = UndoRecord(read_streams(), {})
        names = self.namespace(top, undo)
        visible = {**top.globals, **top.names}
        kept = [
            # Their counts are of the script's own microbatches.
            (members(owner), contents(owner))
            for _, owner in owners_of(visible, self._script.own_modules)
            if is_framework(owner)
        ]
        originals = held(names, top.iterators)
        self.lend(names, top, undo)
        self.regroup(top, undo)
        try:
            yield names
        finally:
            hold(names, originals)
            undo.refill()
            top.globals.update(undo.changed_globals)
            for attributes, values in kept:
                put_back(attributes, values)
            if saved is not None:
                put_back(top.globals, saved)

    def share(self, rank: int, top: Top, names: dict[str, Any], undo: UndoRecord) -> None:
        """Put the rank's shares of the data in the place of ours."""
        module = top.globals
        visible = {**module, **top.names}
        shares = self._shares.of(rank, visible)
        hold(visible, {key: one for key, one in shares.items() if not isinstance(key, str)})
        for name, value in shares.items():
            if isinstance(name, str):
                names[name] = value
                if name not in top.names and names is not module:
                    undo.changed_globals.setdefault(name, module[name])
                    module[name] = value  # functions that the region calls read it there


def _distinct(owners: Iterable[Any]) -> Iterator[Any]:
    """The values that are there, each once."""
    yield from {id(one): one for one in owners if one is not None}.values()


def restore_body(top: Top, theirs: Context, mine: Context) -> None:
    """Streams are where theirs stood as the body began. Raises NotReplayable if that is unknown."""
    assert top.body is not None, "an iterator was made in the header"
    given = [draw.kept for draw in top.draws if isinstance(draw.kept, GivenItem)]
    if [(one.by_loader, one.before, one.after) for one in given] == [(True, top.streams, top.body)]:
        return  # The item that is theirs has just been read, with all that it draws.
    moved = skip_ahead(theirs.streams, mine.streams, top.body, hosts=False)
    if moved is None:
        raise NotReplayable(UNTOLD)
    restore_streams(moved.hosted(read_hosts()))
