"""The rank that is executed, as sources of data ask for it: its calls in the headers of loops.

    for x in batches(rows, rank, world):

A proof shows whose the first generator is. One that is called anew in a later epoch may have been
given what is a rank's own. Its call is made again with the names of the rank that is executed, if
it is plain (`loop_header`): if it gives with our names what our generator was given, nothing that
it reads is written in the loop, or later than objects are made, and what no context holds of the
rank (rows) is no rank's own.
"""

from collections.abc import Collection, Iterable
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any, NamedTuple, Protocol

from recoverrun.worker.analysis.rank_spread import HARDWARE
from recoverrun.worker.context.slot_context import Key, belongs_to_process, last
from recoverrun.worker.context.values import FIXED, is_simple, same
from recoverrun.worker.data.generator_wrapper import Make, maker
from recoverrun.worker.instrumentation import WITHOUT_EFFECT, Loop
from recoverrun.worker.tracking.microbatches import Top


class ScriptCall(NamedTuple):
    """A function of the script, not wrapped, and what it is given."""

    function: Any
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]


class Text(Protocol):
    """Knows the script's own text."""

    def moves(self, names: Collection[str]) -> bool:
        """True if one of these names is written later than objects are made."""

    def are_of_ranks(self, loop: Loop, names: Collection[str], differing: Iterable[Key]) -> bool:
        """True if what is called as one of `names` at `loop` may come of these, or of the rank that
        is asked for.
        """


class ExecutedRank:
    """One rank after another."""

    def __init__(self, text: Text) -> None:
        self._text = text
        self.data_sets: dict[int, dict[Any, Any]] = {}  # ours, before the rank's
        self.apart: frozenset[Key] = frozenset()  # differs between us and the rank
        self.unknown: frozenset[Key] = frozenset()  # of the rank, where it begins
        self._loop: Loop | None = None
        self._own: ScriptCall | None = None  # in its header
        self._names: dict[str, Any] = {}

    def begins(
        self, top: Top, data_sets: dict[int, dict[Any, Any]], unknown: Collection[Key]
    ) -> None:
        """An iteration is about to be executed; names and objects still are ours, also the
        contents of `data_sets`. What is `unknown` of the rank is ours then, too.
        """
        self.data_sets, self.unknown = data_sets, frozenset(unknown)
        self._loop, self._own, self._names = (loop := top.loop), None, {}
        guessed = {last(key) for key in unknown} | loop.rebinds
        guessed |= {name for name in loop.header_names if _tells_a_place(name)}
        if loop.header_code is not None and guessed.isdisjoint(loop.header_names):
            self._own = _call(loop.header_code, {**top.globals, **top.names})

    def goes_on(self, apart: Iterable[Key], names: dict[str, Any]) -> None:
        """Names and objects are those of the rank, which differs from us in what is `apart`."""
        self.apart, self._names = frozenset(apart), names

    def made_like(self, own: Make) -> Make | None:
        """The call that the rank makes where we made `own`; None if it is not known."""
        mine, loop, text = self._own, self._loop, self._text
        if mine is None or loop is None or not isinstance(own, partial):
            return None
        assert loop.header_code is not None, "it gave our call"
        given = ScriptCall(own.func, own.args, own.keywords)
        if not _alike(mine, given):
            return None
        theirs = _call(loop.header_code, self._names)
        if theirs is None or theirs.function is not given.function:
            return None
        ours = self._held_by_nobody(loop.header_names)
        if text.moves(loop.header_names) or text.are_of_ranks(loop, ours, self.apart):
            return None
        return maker(theirs.function, theirs.arguments, theirs.keywords)

    def _held_by_nobody(self, names: frozenset[str]) -> frozenset[str]:
        """Those of the names whose values no context holds, so that they still are ours."""
        held = {name for name in names if type(self._names.get(name, ...)) in FIXED}
        return names - held - {last(key) for key in self.apart} - WITHOUT_EFFECT


def _tells_a_place(name: str) -> bool:
    """True of a local rank: contexts leave it to the process that executes."""
    return belongs_to_process(name) and not any(word in name.lower() for word in HARDWARE)


def _call(code: CodeType, names: dict[str, Any]) -> ScriptCall | None:
    """The call as the script's own header makes it with these names; None if it does not."""
    try:
        function, arguments, keywords = FunctionType(code, names)()
    # Protects the survivor: names that the script sets later are not there, or hold other things.
    except Exception:
        return None
    if isinstance(function, MethodType):
        bound: Any = function
        function, arguments = bound.__func__, (bound.__self__, *arguments)
    return ScriptCall(getattr(function, "__wrapped__", function), arguments, keywords)


def _alike(one: ScriptCall, other: ScriptCall) -> bool:
    if one.function is not other.function or one.keywords.keys() != other.keywords.keys():
        return False
    pairs = [*zip(one.arguments, other.arguments, strict=False)]
    pairs += [(value, other.keywords[name]) for name, value in one.keywords.items()]
    alike = all(
        mine is theirs or (is_simple(mine) and same(mine, theirs)) for mine, theirs in pairs
    )
    return alike and len(one.arguments) == len(other.arguments)
