"""The vocabulary in which an unmodified script is met: its loops, and who is told about them.

A script knows nothing of us. `loop_transformer` finds the loops from which a `.backward()` is
reachable and describes each as a `Loop`; the instrumented code calls a `Runtime`, which it finds in
its module's globals under the name `RUNTIME_NAME`. Pure: nothing here imports torch, reads a file
or acts.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import CodeType
from typing import Literal, NamedTuple, ParamSpec, Protocol, TypeVar

T = TypeVar("T")
P = ParamSpec("P")

LoopKind = Literal["for", "while", "async for"]

RUNTIME_NAME = "__recoverrun__"
ITEM_NAME = "__recoverrun_item__"
EXIT_NAME = "__recoverrun_exit__"


WITHOUT_EFFECT = frozenset(
    {"len", "int", "float", "str", "min", "max", "abs", "range", "get_rank", "get_world_size"}
)
"""Functions that a loop's header may call for its call to be made once more."""


class Making(NamedTuple):
    """The place where rank 0 makes, before it trains, something that it alone has."""

    name: str  # also dotted
    function: str  # the qualified name of the one that does; "" for the module
    code: CodeType  # an expression; what it opens to be written is opened to be appended to
    needs: tuple[str, ...]  # names that it reads, also dotted


class Lone(NamedTuple):
    """Code for rank 0 alone: names, also dotted ones, of what comes of it, and of what it reads."""

    writes: tuple[str, ...]
    reads: tuple[str, ...]
    makes: tuple[Making, ...] = ()
    taints: tuple[str, ...] = ()  # what is not to be believed if it fails, beside `writes`


class Changes(NamedTuple):
    """The names under which the text of a module changes variables of modules."""

    rebound: frozenset[str] = frozenset()  # by a function, which says `global` or `nonlocal`
    owners: frozenset[str] = frozenset()  # of attributes that are written to, `self` apart
    attributes: frozenset[str] = frozenset()  # these
    contents: frozenset[str] = frozenset()  # changed in place: containers, tensors, iterators


NO_CHANGES = Changes()


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """An instrumented loop, and its body in a form that can be executed once more.

    `body_code`, `header_code` and `item_code` are executed with one plain dict as globals and
    locals: the globals of the module, overlaid with the locals that `top` was shown. Names are
    spelled as in `locals()` (private names of a class mangled). All code keeps the line numbers of
    the source.
    """

    id: str  # "<filename>:<lineno>"
    kind: LoopKind
    filename: str
    line: int
    last_line: int
    module_level: bool  # locals() is globals() there
    qualname: str  # of the function around it; "<module>" at module level

    assigned: frozenset[str]  # names that the body may bind or delete
    live_in: frozenset[str]  # names that the body may read before it has surely written them
    carried: frozenset[str]  # live in, assigned, not a target: what one iteration tells the next
    targets: frozenset[str]  # bound by the loop itself: `for T in`, `while (T := ...)`
    tested: frozenset[str] = frozenset()  # bound by the test of a `while`
    global_names: frozenset[str]  # those of `assigned` that are variables of the module

    item_code: CodeType | None  # binds the target from ITEM_NAME; None unless kind is "for"
    header_code: CodeType | None = None  # the call that it goes over (`loop_header`)
    body_code: CodeType | None  # the body, its inner loops not instrumented; None if refused
    refusal: str  # "" if the body can be executed again, else a sentence that says why not
    waits: tuple[tuple[int, str], ...] = ()
    """Lines at which the body hands control to the caller, and why nothing behind them can be
    executed again; "" where that shows only as it is executed."""
    counts: tuple[str, str] | None = None
    """Of a `while step < limit` that counts its turns: the variable and the limit, as written."""
    branches: bool = False  # it has an `else`, which `break` passes over

    @property
    def header_names(self) -> frozenset[str]:
        """Names of variables and attributes in the call that it goes over."""
        return frozenset(() if self.header_code is None else self.header_code.co_names)

    @property
    def rebinds(self) -> frozenset[str]:
        """Names that an iteration may bind."""
        return self.assigned | self.targets

    @property
    def made(self) -> frozenset[str]:
        """Names that an iteration binds before it reads them: nothing comes by them into it."""
        return self.assigned - self.carried | self.targets


class Runtime(Protocol):
    """The runtime that instrumented code calls. Every method must be inert in a process forked by
    the script.

    `top` is handed the live dict of `locals()`. In a function, Python 3.11 and 3.12 keep that dict
    in the frame, where it prolongs the life of every local (the last logits, say) until the next
    call: clear it once the wanted names are copied out. At module level (`Loop.module_level`), and
    in a class body, it *is* the namespace: never clear it there.
    """

    @property
    def Unwind(self) -> type[BaseException]:
        """Raised by `body_code` with "break", "continue" or "return"; may be raised by hooks."""
        ...

    def register(self, loop: Loop) -> None:
        """Learn of a loop. Called before its module executes, again if it is loaded again."""
        ...

    def own(
        self,
        module: str,
        path: str,
        source: bytes,
        changes: Changes = NO_CHANGES,
        *,
        installed: bool = False,
    ) -> None:
        """Learn that a module is the script's own, before it is loaded from this source, and which
        variables it `changes`. The variables of one that is `installed` belong to no slot.
        """
        ...

    def refuse(self, filename: str, reason: str) -> None:
        """Learn that a module runs without instrumentation."""
        ...

    def iterate(self, loop_id: str, iterable: Iterable[T]) -> Iterator[T]: ...

    def enter(self, loop_id: str) -> bool:
        """A `while` or `async for` is about to start: False if it is to be passed over."""
        ...

    def top(self, loop_id: str, local: dict[str, object], global_: dict[str, object]) -> None:
        """An iteration begins; the target is bound. First statement of the body."""
        ...

    def leave(self, loop_id: str) -> None:
        """The loop ended by its condition or by `break`; not called if it is left by an error,
        or by `return`: a later call for an outer loop or another frame tells as much. Of a `for`
        that has no `break` the end of its items tells it.
        """
        ...

    def returns(self, loop_id: str, value: T) -> T:
        """The function returns `value` from within this loop, its outermost one."""
        ...

    def returned(self, loop_id: str) -> bool:
        """True if this loop was passed over, and others have left it by `return`."""
        ...

    def result(self, loop_id: str) -> object:
        """The value that they have returned. Asked once."""
        ...

    def first(self, where: str, sense: bool, result: object, rank: object = None) -> object:
        """True if this is rank 0, as the script says by `result` (`sense` on rank 0)."""
        ...

    def stands_in(self, where: str, sense: bool, result: object, rank: object = None) -> bool:
        """True if this is not rank 0 (see `first`), but decides in its place what follows."""
        ...

    def hand_on(self, places: Mapping[str, Lone]) -> None:
        """Learn where a module does something on rank 0 alone."""
        ...

    def bring(self, value: object) -> None:
        """An argument that rank 0 alone gives to the call that follows."""
        ...

    def asking(self, where: str) -> AbstractContextManager[object]:
        """Around what rank 0 alone asks before it does something (`leading`)."""
        ...

    def beside(self) -> AbstractContextManager[object]:
        """Around what rank 0 alone does, in code that is executed as another rank."""
        ...

    def leading(self, where: str) -> AbstractContextManager[object]:
        """Around what the script does on rank 0 alone."""
        ...

    def waits(self, reason: str, _value: object = None) -> object:
        """Code that is executed again has come to a place where the script waits."""
        ...

    def drained(self, reason: str, delegate: Iterable[object]) -> object:
        """Return the result of a `yield from` in code that is executed again. If `delegate` yields
        anything, the script waits there.
        """
        ...

    def generator(self, function: Callable[P, Iterator[T]]) -> Callable[P, Iterator[T]]:
        """Decorate a generator function of the script, which keeps its looks (`same_kind`)."""
        ...


def _ignore(_error: BaseException) -> None:
    """Let an error take its course."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingHints:
    """Names that lead to a backward by ways that the script's sources do not show."""

    modules: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Modules of frameworks to instrument wherever they are, and names in them that train."""
    words: Mapping[bytes, frozenset[str]] = field(default_factory=dict)
    """Words that a project's files contain, and names in that project that train."""
    packages: frozenset[str] = frozenset()
    """Installed packages of which this is all: none of their other files is looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The objects of `boot.worker.start` that the run of the script needs."""

    runtime: Runtime | None  # None: not protected, nothing is instrumented
    finish: Callable[[int], None]  # told the exit code, once, after the script's last statement
    failing: Callable[[BaseException], None] = _ignore  # told an uncaught error, before it is shown
    hints: TrainingHints = field(default_factory=TrainingHints)
