"""The variables and attributes of the script that can bear on a microbatch's gradient."""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch

from recoverrun.worker.analysis import rank_flow
from recoverrun.worker.analysis.later_writes import written_later
from recoverrun.worker.analysis.moving_shares import MovingShares
from recoverrun.worker.analysis.own_results import OwnResults
from recoverrun.worker.analysis.program_slice import (
    SliceNames,
    Texts,
    body_of,
    slice_before_backward,
    written_first,
)
from recoverrun.worker.analysis.rank0_names import rank0_names
from recoverrun.worker.analysis.rank_spread import Spread
from recoverrun.worker.analysis.tail_slice import TailSlice, changed_elsewhere, tail_behind
from recoverrun.worker.context.fingerprints import is_mark
from recoverrun.worker.context.object_members import identifier, is_framework, is_sampler, resolve
from recoverrun.worker.context.passed_over import PassedOver
from recoverrun.worker.context.slot_context import Context, Key
from recoverrun.worker.context.values import is_numpy, same
from recoverrun.worker.instrumentation import Loop
from recoverrun.worker.replay.holder_places import RequestedValues
from recoverrun.worker.replay.known_state import differing
from recoverrun.worker.tracking.microbatches import Top
from recoverrun.worker.tracking.rank0_gate import Rank0Gate


class Modules(Protocol):
    """Knows which modules are the script's own."""

    own_modules: frozenset[str]


class Script(Modules, Protocol):
    """Knows also which ranks may do what rank 0 does."""

    gate: Rank0Gate


class Influence:
    """Asks the script's own text (`program_slice`), and what was tried (`proofs`)."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._texts = Texts()
        self._reads: dict[str, tuple[frozenset[str], SliceNames | None]] = {}  # by loop
        self._flows: dict[tuple[str, str, frozenset[str], frozenset[str]], bool] = {}
        self._gives: dict[tuple[str, int], bool] = {}
        self._spreads: dict[tuple[frozenset[str], frozenset[str]], Spread] = {}
        self._own_results: tuple[frozenset[str], OwnResults] | None = None  # by modules
        self._moving: dict[
            tuple[tuple[str, ...], frozenset[str], frozenset[str]], MovingShares
        ] = {}
        self._tails: dict[
            tuple[str, int], TailSlice | None
        ] = {}  # by loop, and line of the backward
        self._rank0s = [PassedOver(), PassedOver()]
        self.read: frozenset[str] | None = None  # names that any microbatch may read, if known
        self.top: Top | None = None  # the present one
        self.immaterial: dict[str, frozenset[Key]] = {}  # by loop: shown to change no gradient

    def matters(self, key: Key, value: Any) -> bool:
        """True if a microbatch may depend on what is called so."""
        top = self.top
        if top is None:
            return not isinstance(key, str) or type(value) is int
        if key in self.immaterial.get(top.loop.id, ()):
            return False
        reads, path = self._reads_of(top.loop), (key,) if isinstance(key, str) else key
        names = {**top.globals, **top.names} if path[1:] else {}
        owner = resolve(names, path) if names else None
        while is_sampler(owner):  # whose own code reads what it holds
            path = path[:-1]
            owner = resolve(names, path) if path[1:] else None
        if type(value) is float and is_framework(owner):
            return False  # as it differs between ranks, it is a time
        if reads is None or is_framework(owner):
            return not isinstance(key, str) or key in top.loop.live_in or type(value) is int
        name = identifier(path)
        # Entries of a dict are called as the dict is.
        return name in (reads.attributes if path[1:] and name != path[0] else reads.variables)

    def shown(self, loop: str, keys: Iterable[Key]) -> None:
        """A proof has shown that these change no gradient of that loop."""
        self.immaterial[loop] = self.immaterial.get(loop, frozenset()).union(keys)

    def behind(self, loop: Loop, line: int) -> TailSlice | None:
        """The statements in the body of `loop` behind a backward at `line` that compute variables
        from others; None if they make nothing that a microbatch reads.
        """
        reads, asked = self._reads_of(loop), (loop.id, line)
        if reads is None:
            return None
        if asked not in self._tails:
            body, read = body_of(loop, self._texts), reads.variables | reads.attributes
            tail = tail_behind(body, line, loop.filename, read)
            if tail is not None:  # the texts of all modules take a while
                others = changed_elsewhere(self._texts.trees(), loop.filename, loop.line)
                tail = tail_behind(body, line, loop.filename, read, others)
            self._tails[asked] = tail
        return self._tails[asked]

    def asked(self, top: Top) -> RequestedValues:
        """The names that a microbatch which begins there reads, and the variables they hang on."""
        reads = self._reads_of(top.loop)
        held = top.context.names if top.context is not None else {}
        names = {**top.globals, **top.names}
        loose = {name: value for name, value in names.items() if name not in held}
        if reads is None:
            written = written_first(body_of(top.loop, self._texts))
            return RequestedValues(loose, None, written, frozenset())
        return RequestedValues(
            loose, reads.attributes | reads.variables, reads.written, reads.gone_over
        )

    def flows(self, outer: Loop, inner: Loop, differing: Iterable[Key]) -> bool:
        """True if what `inner` reads may be computed, from the top of `outer` on, from these."""
        modules = self._script.own_modules
        names = frozenset(key if isinstance(key, str) else identifier(key) for key in differing)
        asked = outer.id, inner.id, names, modules
        if asked not in self._flows:
            self._texts.load(modules)
            self._flows = {asked: rank_flow.reaches(outer, inner, names, self._texts.trees())}
        return self._flows[asked]

    def spread(self, loops: Iterable[Loop], names: Iterable[str]) -> Callable[[str, int], bool]:
        """True of the lines, by file name, that may read what comes of these `names` in `loops`."""
        self._texts.load(self._script.own_modules)
        return Spread(loops, list(names), self._texts.trees()).enters

    def own_results(self, differing: Iterable[Key], key: Key) -> bool:
        """True if what is called as `key` may come of what each rank computes for itself: of a
        loss, or of these.
        """
        modules = self._script.own_modules
        if self._own_results is None or self._own_results[0] != modules:
            self._texts.load(modules)
            found = OwnResults(dict(self._texts.sources), self._texts.tree)
            self._own_results = modules, found
        names = frozenset("".join(_entry_of(one)) for one in differing)
        return self._own_results[1].holds(*_entry_of(key), names)

    def gives(self, function: str, differing: Iterable[Key]) -> bool:
        """True if a call of what is called `function` may be given what comes of these, or of the
        rank that is asked for.
        """
        spread = self._spread_of(differing)
        asked = function, id(spread)
        if asked not in self._gives:
            self._gives = {asked: spread.gives(function)}
        return self._gives[asked]

    def are_of_ranks(self, loop: Loop, names: Collection[str], differing: Iterable[Key]) -> bool:
        """True if what is called as one of `names` at `loop` may come of these, or of the rank that
        is asked for.
        """
        return self._spread_of(differing).reaches(loop, names)

    def moving(self, loops: Sequence[Loop], differing: Iterable[Key]) -> MovingShares:
        """The labels of what comes of these, and of the turn of the outer ones of `loops`."""
        modules = self._script.own_modules
        names = frozenset(key if isinstance(key, str) else identifier(key) for key in differing)
        asked = tuple(loop.id for loop in loops), names, modules
        if asked not in self._moving:
            self._texts.load(modules)
            outer, inner = loops[:-1], loops[-1:]
            if outer:  # items of the inner one are data
                inner = [replace(one, targets=frozenset()) for one in inner]
            labels = MovingShares([*outer, *inner], names, self._texts.trees())
            self._moving = {asked: labels}
        return self._moving[asked]

    def _spread_of(self, differing: Iterable[Key]) -> Spread:
        modules = self._script.own_modules
        names = frozenset(key if isinstance(key, str) else identifier(key) for key in differing)
        asked = names, modules
        if asked not in self._spreads:
            self._texts.load(modules)
            self._gives.clear()
            self._spreads = {asked: Spread((), names | rank_flow.ASKED, self._texts.trees())}
        return self._spreads[asked]

    def moves(self, names: Collection[str]) -> bool:
        """True if one of these names is written later than objects are made."""
        self._texts.load(self._script.own_modules)
        return written_later(self._texts.trees().values(), frozenset(names))

    def rank0s(self, *, unread: bool = False) -> PassedOver:
        """All that is rank 0's alone, by the script's text; with `unread` what other code does not
        read either.
        """
        modules = self._script.own_modules
        if self._rank0s[unread].own != modules:
            self._texts.load(modules)
            found = rank0_names(self._texts.trees().values(), unread=unread)
            passed = PassedOver(found.variables, found.attributes, found.entries, modules)
            self._rank0s[unread] = passed
        return self._rank0s[unread]

    def matters_to(self, rank: int) -> Callable[[Key, Any], bool]:
        """The same of microbatches of `rank`. Where it does nothing that rank 0 does alone, what
        only such code reads and writes is nothing to it.
        """
        if self._script.gate.first_of_node(rank):
            return self.matters
        return lambda key, value: (
            self.matters(key, value) and not self.rank0s(unread=True).lies_on(key)
        )

    def renews(
        self,
        outer: Loop,
        around: Sequence[Context],
        inner: Loop,
        within: Sequence[Context],
        drawn: Collection[str] = (),
    ) -> bool:
        """True if each iteration of `outer` makes data anew that ranks hold apart and `inner`
        reads, or generators of which those are that a microbatch has `drawn` from: contexts of all
        ranks are those of the outer and of the inner loop.

        Numbers do not count: those that differ are mostly constants of the rank.
        """
        reads = self._reads_of(inner)
        if len(around) < len(within):
            return False
        if any(_is_made_anew(key, around, within) for key in drawn):
            return True
        if reads is None:
            return False
        apart = {key for one in within for key in differing(one, within[0])}
        names = {key for key in apart if isinstance(key, str) and _is_data(within[0], key)}
        read = {key for key in names if key.removesuffix("#") in reads.variables}
        if (outer.filename, outer.qualname) == (inner.filename, inner.qualname):
            made = outer.assigned - outer.live_in
            return any(key.removesuffix("#") in made for key in read)
        # Of another function, it may have been handed on.
        handed = [list(one.values.values()) for one in around]
        return any(
            not any(same(one.values.get(key), value) for value in values)
            for key in read
            for one, values in zip(within, handed, strict=False)
        )

    def _reads_of(self, region: Loop) -> SliceNames | None:
        """The names read before the backward of `region`, by the modules that are loaded now."""
        modules = self._script.own_modules
        known = self._reads.get(region.id)
        if known is None or known[0] != modules:
            self._texts.load(modules)
            known = self._reads[region.id] = modules, slice_before_backward(region, self._texts)
            slices = [names for _, names in self._reads.values()]
            every = [
                one.attributes | one.variables | one.counted for one in slices if one is not None
            ]
            self.read = frozenset().union(*every) if len(every) == len(slices) else None
        return known[1]


def _entry_of(key: Key) -> tuple[str, str]:
    """The name that stands in the text, and the entry of what is called so, or ""."""
    if isinstance(key, str):
        return key, ""
    return identifier(key), key[-1] if key[-1].startswith("[") else ""


def _is_data(context: Context, key: str) -> bool:
    value = context.values.get(key)
    return is_mark(key) or isinstance(value, torch.Tensor | list | tuple | deque) or is_numpy(value)


def _is_made_anew(key: str, around: Sequence[Context], within: Sequence[Context]) -> bool:
    """True if this generator was made since the outer iteration began, by each rank otherwise."""
    if any(key in one.generators for one in around):
        return False
    states = [one.generators.get(key) for one in within]
    return any(not same(one, states[0]) for one in states)
