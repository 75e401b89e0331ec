"""Names that rank 0 alone gives values to, by the script's text.

    if rank == 0:
        if self.best is None or loss < self.best["loss"]:
            self.best = {"loss": loss, "state": copy.deepcopy(model.state_dict())}
        state.setdefault("writer", SummaryWriter(folder))

A name counts if code for rank 0 alone writes it, or changes in place what it names, and all other
code gives it one and the same constant, or an empty container that it never names again. So on all
other ranks it has that value, whatever rank 0 has there. Functions that are named in such code
alone are such code. Where a text leaves doubts the name does not count.

Variables, attributes and entries of dicts are known by their bare names: one that is written
otherwise anywhere in the project does not count.
"""

import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeGuard

from recoverrun.worker.analysis.bare_names import Function, is_static, name_of
from recoverrun.worker.analysis.pure_statements import CHANGES
from recoverrun.worker.analysis.rank0_code import divided, only_leaves
from recoverrun.worker.analysis.rank0_guards import BoundModule, Rank0Guards, is_guarded
from recoverrun.worker.analysis.rank_conditions import BoundNames, bound_names
from recoverrun.worker.analysis.rank_flow import MOST_FUNCTIONS
from recoverrun.worker.analysis.syntax_trees import blocks, children, walk

CONTAINERS = frozenset({"dict", "list", "set", "deque", "defaultdict", "OrderedDict", "Counter"})
FILLS = CHANGES | {"setdefault", "update", "remove", "sort", "reverse"}
ASKS = frozenset({"get", "pop"})
"""Methods of a dict whose first argument names an entry that they do not make."""

SEEN = (ast.expr, ast.withitem, ast.pattern)

EMPTY = "[]"
"""The value of a name that is given an empty container."""

UNLIKE = ""
"""The value of a name that is given anything but a constant."""

Named = tuple[str, str]
"""The name of a variable, with ""; of an attribute, with "."; or of an entry, with its dict's."""


class TextConstant(ast.Constant):
    """A constant that is a text, for the type checker."""

    value: str


@dataclass(frozen=True, slots=True)
class Rank0Names:
    """Names that count. An entry is known by the bare name of its dict and by its key."""

    variables: frozenset[str] = frozenset()
    attributes: frozenset[str] = frozenset()
    entries: frozenset[tuple[str, str]] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.variables or self.attributes or self.entries)


def rank0_names(modules: Iterable[ast.Module], *, unread: bool = False) -> Rank0Names:
    """Return the names of a project; with `unread` variables and attributes alone that other code
    does not read.
    """
    trees = [(tree, bound_names(tree)) for tree in modules]
    guards, lone = Rank0Guards(trees), frozenset[str]()
    functions = [one for tree, _ in trees for one in walk(tree) if isinstance(one, Function)]
    if len(functions) > MOST_FUNCTIONS:  # it would take seconds
        return Rank0Names()
    while True:
        text = _Text(trees, guards, lone)
        found = text.lone_functions()
        if found <= lone:
            return text.names(unread)
        lone |= found


@dataclass(slots=True)
class _Uses:
    """The uses of one name."""

    written: bool = False  # by code for rank 0 alone
    values: set[str] = field(default_factory=set)  # that other code gives it
    read: bool = False  # by other code

    def counts(self) -> bool:
        if not self.written or len(self.values) > 1 or UNLIKE in self.values:
            return False
        return not (self.read and EMPTY in self.values)


class _Text:
    """All that a project names, in code for rank 0 alone and in other code."""

    def __init__(
        self, trees: Sequence[BoundModule], guards: Rank0Guards, lone: frozenset[str]
    ) -> None:
        self._lone = lone
        self._uses: dict[Named, _Uses] = {}
        self._keys: dict[str, set[str]] = {}  # values that other code gives entries, by key
        self._within: set[str] = set()  # named by code for rank 0 alone
        self._outside: set[str] = set()
        self._functions: dict[str, list[bool]] = {}  # True of those that nothing else may call
        self._bound = BoundNames()
        self._guards = guards
        classes = (one for tree, _ in trees for one in walk(tree) if isinstance(one, ast.ClassDef))
        self._kinds = {one.name for one in classes}
        for tree, self._bound in trees:
            self._visit_blocks(tree, alone=False, owner=None)

    def names(self, unread: bool) -> Rank0Names:
        counted = {
            name
            for name, uses in self._uses.items()
            if uses.counts() and not (unread and (uses.read or name[0] not in ("", ".")))
        }
        entries = {
            name
            for name in counted
            if name[0] not in ("", ".") and self._may_be_one(name[1], self._uses[name].values)
        }
        return Rank0Names(
            frozenset(name for kind, name in counted if not kind),
            frozenset(name for kind, name in counted if kind == "."),
            frozenset(entries),
        )

    def _may_be_one(self, key: str, values: set[str]) -> bool:
        """True if no other code makes an entry of that key, but with one constant."""
        every = self._keys.get(key, set()) | values
        return len(every) <= 1 and UNLIKE not in every

    def lone_functions(self) -> frozenset[str]:
        """Functions that are named in code for rank 0 alone, and in no other."""
        return frozenset(
            name
            for name, plain in self._functions.items()
            if all(plain) and name in self._within and name not in self._outside
        )

    # ------------------------------------------------------------------------- statements

    def _visit_blocks(self, node: ast.AST, *, alone: bool, owner: ast.ClassDef | None) -> None:
        for _, block in blocks(node):
            rest = alone
            for statement in block:
                rest = self._visit(statement, rest, owner)

    def _visit(self, node: ast.AST, alone: bool, owner: ast.ClassDef | None) -> bool:
        """Visit a statement, a handler or a case. True if what follows is rank 0's alone."""
        match node:
            case ast.If():
                return self._visit_if(node, alone, owner)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._visit_function(node, alone, owner)
            case ast.ClassDef():
                self._bind_at(("", node.name), UNLIKE, alone)
                self._look_at(children_beside_blocks(node), alone)
                self._visit_blocks(node, alone=alone, owner=node)
            case _:
                if owner is not None:
                    self._visit_member(node, alone)
                self._look_at([node], alone, statement=True)
                self._visit_blocks(node, alone=alone, owner=None)
        return alone

    def _visit_if(self, node: ast.If, alone: bool, owner: ast.ClassDef | None) -> bool:
        first = self._look_at_test(node.test, alone)
        within, otherwise = alone or first is True, alone or first is False
        for block, lone in ((node.body, within), (node.orelse, otherwise)):
            rest = lone
            for statement in block:
                rest = self._visit(statement, rest, owner)
        return alone or (first is False and not node.orelse and only_leaves(node.body))

    def _look_at_test(self, test: ast.expr, alone: bool) -> bool | None:
        """Return the value that a condition has on rank 0 alone; None if it does not ask so."""
        for sense in (True, False):
            if (asked := self._guards.asked(test, sense, self._bound)) is not None:
                part, *behind = divided(test, asked, sense)
                self._look_at([part], alone, asked=True)
                self._look_at(behind, alone=True)
                return sense
        self._look_at([test], alone, asked=True)
        return None

    def _visit_function(self, node: Function, alone: bool, owner: ast.ClassDef | None) -> None:
        bases = owner.bases if owner is not None else []
        known = all(name_of(base) in {*self._kinds, "object"} for base in bases)
        plain = known and not node.name.startswith("__") and node.name != "forward"
        plain &= not node.decorator_list or is_static(node)
        self._functions.setdefault(node.name, []).append(plain)
        self._bind_at(("", node.name), UNLIKE, alone)
        self._bind_at((".", node.name), UNLIKE, alone)
        lone = alone or is_guarded(node) or node.name in self._lone
        every = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
        for one in (*every, node.args.vararg, node.args.kwarg):
            if one is not None:
                self._bind_at(("", one.arg), UNLIKE, lone)
        self._look_at([*node.decorator_list, node.args], alone)
        self._visit_blocks(node, alone=lone, owner=None)

    def _visit_member(self, node: ast.AST, alone: bool) -> None:
        """A variable of a class is an attribute of its objects."""
        match node:
            case ast.Assign(targets=targets, value=value):
                for one in targets:
                    self._bind_at((".", name_of(one)), _value_of(value), alone)
            case ast.AnnAssign(target=ast.Name(id=name), value=value) if value is not None:
                self._bind_at((".", name), _value_of(value), alone)

    # ------------------------------------------------------------------------- expressions

    def _look_at(
        self,
        nodes: Iterable[ast.AST],
        alone: bool,
        *,
        statement: bool = False,
        asked: bool = False,
    ) -> None:
        """Look at expressions, or at a statement without the blocks in it; of conditions it may be
        known what they have `asked`.
        """
        for node in nodes:
            inner = children_beside_blocks(node) if statement else children(node)
            if isinstance(node, ast.BoolOp) and not (alone or asked):
                self._look_at_test(node, alone)
                continue
            if isinstance(node, SEEN) or statement:
                inner = self._look(node, inner, alone)
            self._look_at(inner, alone)

    def _look(self, node: ast.AST, inner: list[ast.AST], alone: bool) -> list[ast.AST]:
        """Note what a node names. Returns what is left to be looked at in it."""
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._assign(target, value, alone)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._assign(target, value, alone)
            case ast.NamedExpr(target=target, value=value):
                self._assign(target, value, alone)
            case ast.AugAssign(target=target):
                self._bind(target, UNLIKE, alone)
            case ast.For(target=target) | ast.AsyncFor(target=target):
                self._bind(target, UNLIKE, alone)
            case ast.withitem(optional_vars=ast.expr() as target):
                self._bind(target, UNLIKE, alone)
            case ast.Expr(value=ast.Constant()):
                return []
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                for one in names:
                    name = one.asname or one.name.partition(".")[0]
                    self._bind_at(("", name), UNLIKE, alone)
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
                self._bind_at(("", name), UNLIKE, alone)
            case ast.Delete(targets=targets):
                for target in targets:
                    self._bind(target, UNLIKE, alone)
            case ast.Call():
                return self._call(node, alone)
            case ast.IfExp(test=test, body=body, orelse=other):
                first = self._look_at_test(test, alone)
                self._look_at([body], alone or first is True)
                self._look_at([other], alone or first is False)
                return []
            case ast.Name(id=name, ctx=ast.Load()):
                self._read(("", name), alone)
            case ast.Attribute(attr=name, ctx=ast.Load()):
                self._read((".", name), alone)
            case ast.Compare() | ast.Subscript():
                return [one for one in inner if not isinstance(one, ast.Constant)]
            case ast.Dict(keys=keys, values=values):
                for key, value in zip(keys, values, strict=True):
                    if key is not None:
                        self._key(key, _value_of(value), alone)
                return [one for one in inner if one not in keys or not _is_text(one)]
            case ast.Constant():
                self._key(node, UNLIKE, alone)
            case _:
                pass
        return inner

    def _call(self, node: ast.Call, alone: bool) -> list[ast.AST]:
        function, given = node.func, list[ast.AST](node.args)
        for one in node.keywords:
            self._key(ast.Constant(one.arg), _value_of(one.value), alone)
            self._bind_at((".", one.arg or ""), _value_of(one.value), alone)
        if isinstance(function, ast.Attribute):
            if alone and function.attr in FILLS:
                self._bind(function.value, UNLIKE, alone)
            if given and _is_text(given[0]) and function.attr in {*ASKS, "setdefault"}:
                if function.attr == "setdefault":
                    value = _value_of(node.args[1]) if len(node.args) > 1 else "None"
                    self._entry(function.value, node.args[0], value, alone)
                given = given[1:]
        elif name_of(function) == "setattr" and len(node.args) > 1:
            name = node.args[1]
            told = name.value if isinstance(name, ast.Constant) else ""
            self._bind_at((".", str(told)), UNLIKE, alone)
        return [function, *given, *(one.value for one in node.keywords)]

    def _assign(self, target: ast.expr, value: ast.expr, alone: bool) -> None:
        match target, value:
            case ast.Tuple() | ast.List(), ast.Tuple() | ast.List() if len(target.elts) == len(
                value.elts
            ):
                for one, other in zip(target.elts, value.elts, strict=True):
                    self._assign(one, other, alone)
            case _, ast.IfExp(test=test, body=body, orelse=other) if not alone:
                self._bind(
                    target, _value_of(body), self._guards.asked(test, True, self._bound) is not None
                )
                self._bind(
                    target,
                    _value_of(other),
                    self._guards.asked(test, False, self._bound) is not None,
                )
            case _:
                self._bind(target, _value_of(value), alone)

    def _bind(self, target: ast.expr, value: str, alone: bool) -> None:
        match target:
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                for one in parts:
                    self._bind(one, UNLIKE, alone)
            case ast.Starred(value=part):
                self._bind(part, UNLIKE, alone)
            case ast.Name(id=name):
                self._bind_at(("", name), value, alone)
            case ast.Attribute(attr=name):
                self._bind_at((".", name), value, alone)
            case ast.Subscript(value=owner, slice=key):
                self._entry(owner, key, value, alone)

    def _entry(self, owner: ast.expr, key: ast.expr, value: str, alone: bool) -> None:
        """An entry is written: the dict is changed in place, too."""
        if _is_text(key):
            self._bind_at((name_of(owner), key.value), value, alone)
            self._key(key, value, alone)
        if alone:
            self._bind(owner, UNLIKE, alone)

    def _bind_at(self, name: Named, value: str, alone: bool) -> None:
        uses = self._uses.setdefault(name, _Uses())
        if alone:
            uses.written = True
        else:
            uses.values.add(value)

    def _read(self, name: Named, alone: bool) -> None:
        (self._within if alone else self._outside).add(name[1])
        if not alone:
            self._uses.setdefault(name, _Uses()).read = True

    def _key(self, key: ast.expr, value: str, alone: bool) -> None:
        if not alone and _is_text(key):
            self._keys.setdefault(key.value, set()).add(value)
            self._outside.add(key.value)


def children_beside_blocks(node: ast.AST) -> list[ast.AST]:
    """Return the nodes directly in a node without the statements, handlers and cases of it."""
    within = {id(one) for _, block in blocks(node) for one in block}
    return [one for one in children(node) if id(one) not in within]


def _value_of(value: ast.expr) -> str:
    """The text of a constant; EMPTY for an empty container, UNLIKE for anything else."""
    match value:
        case ast.Constant() | ast.UnaryOp(operand=ast.Constant()):
            return ast.unparse(value) or UNLIKE
        case ast.Call(func=ast.Name(id="float"), args=[ast.Constant()], keywords=[]):
            return ast.unparse(value)
        case ast.List(elts=[]) | ast.Dict(keys=[]):
            return EMPTY
        case ast.Call(func=function, args=args) if name_of(function) in CONTAINERS:
            made_of = all(isinstance(one, ast.Name) for one in args)
            empty = not args or (name_of(function) == "defaultdict" and made_of)
            return EMPTY if empty and not value.keywords else UNLIKE
    return UNLIKE


def _is_text(node: ast.AST) -> TypeGuard[TextConstant]:
    return isinstance(node, ast.Constant) and type(node.value) is str
