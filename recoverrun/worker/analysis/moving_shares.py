"""Values that come of the rank and of the turn of a loop at once, by the script's text.

    for epoch in range(3):
        first = (rank + epoch) % world
        train(Lines(files[rank::world], epoch), Rows(first))

Of `Lines` all is known in each epoch: one attribute is the rank's and rests, the other is the same
on all ranks. Of `Rows` nobody knows what another rank holds. So two labels are kept apart until
they meet in one computation; an object that is given both, each by itself, has not computed yet.
"""

import ast
from collections.abc import Collection, Iterable, Mapping, Sequence

from recoverrun.worker.analysis.bare_names import name_of
from recoverrun.worker.analysis.program_text import Assignment, ProgramText
from recoverrun.worker.analysis.rank_flow import (
    ASKED,
    ATTRIBUTE,
    MOST_FUNCTIONS,
    RESULT,
    Function,
    Name,
    called_so,
    find_loop,
)
from recoverrun.worker.analysis.rank_spread import HARDWARE
from recoverrun.worker.analysis.scopes import COMPREHENSION, bound_names
from recoverrun.worker.analysis.syntax_trees import children
from recoverrun.worker.instrumentation import Loop

OWN, MOVES, BOTH = 1, 2, 4
"""Bits of a label: of the rank, of the turn, and computed of both."""

ALIKE = (*HARDWARE, "world")
"""A variable with such a word in its name is the same on all ranks, or no matter of data."""

DRAWS = ("choice", "integers", "multinomial", "perm", "rand", "sample", "shuffle")
"""A function with such a word in its name gives something else at each call; so does `next`."""

DISPLAYS = (ast.Tuple, ast.List, ast.Set, ast.Dict, ast.Starred, ast.keyword)


def computed(label: int) -> int:
    """The label of what is computed of all that has a part in it."""
    return label | BOTH if label & OWN and label & MOVES else label


class MovingShares:
    """The labels of all names of the script, as iterations of `loops` begin again. What is called
    as one of `differing` is a rank's own. `modules` are as for `rank_flow.reaches`.
    """

    def __init__(
        self, loops: Iterable[Loop], differing: Collection[str], modules: Mapping[str, ast.Module]
    ) -> None:
        self._text = ProgramText({}, [])
        self._labels: dict[Name, int] = {}
        self._read: set[Name] = set()
        self._carried: set[Name] = set()
        self._turns = False  # what is read now is executed in each turn
        try:
            self.everywhere = self._is_too_much(list(loops), differing, modules)
        except RecursionError:  # an expression of hundreds of levels
            self.everywhere = True

    def _is_too_much(
        self, loops: Sequence[Loop], differing: Collection[str], modules: Mapping[str, ast.Module]
    ) -> bool:
        """False if all values were followed."""
        around = [(loop, find_loop(loop, modules)) for loop in loops]
        self._text = text = ProgramText(modules, [one[1] for _, one in around if one is not None])
        if len(text.functions) > MOST_FUNCTIONS:
            return True
        homes = [None if one is None else one[0] for _, one in around]
        project = text.project
        for name in called_so(project, homes, {*differing, *ASKED}):
            self._labels[name] = OWN
        for (loop, found), home in zip(around, homes, strict=True):
            moved = loop.carried | loop.targets
            known = {project.named(home, one) for one in moved}
            for name in known if found is not None else called_so(project, [], moved):
                self._labels[name] = computed(self._labels.get(name, 0) | MOVES)
                self._carried.add(name)
        self._follow()
        return False

    def held(self, kinds: Collection[str], attribute: str) -> int:
        """The label of an attribute of an object whose classes are called as one of `kinds`."""
        return OWN | BOTH if self.everywhere else self._held(kinds, attribute)

    def given(self, kind: str) -> int:
        """The label of what calls of `kind` are given, each argument by itself."""
        every = self._text.calls.get(kind, ())
        calls = [one for one in every if not isinstance(one[1], ast.Lambda)]  # read by itself
        return OWN | BOTH if self.everywhere else self._joined(calls)

    def changed(self, attribute: str) -> int:
        """The label of what is written to an attribute after objects are made. Of too many
        functions it is taken for the same: what rests is not asked for by its name alone.
        """
        later = self._text.written_later.get(attribute, ())
        return 0 if self.everywhere else self._together(later)

    def reads(self, filename: str, line: int, name: str, asked: Collection[str]) -> int:
        """The label of those of the `asked` variables around it that a function of that name, made
        at this line, reads, and of its defaults.
        """
        label = 0
        for scope, node in self._text.functions_at(filename, line, name):
            label |= 0 if self.everywhere else self._of_function(scope, node, asked)
        return label

    def methods(self, kinds: Collection[str], asked: Collection[str]) -> int:
        """The label of the `asked` variables around classes called so that their methods read."""
        label = 0
        for kind in () if self.everywhere else kinds:
            for one in self._text.methods(kind):
                label |= self._of_function(None, one, asked)
        return label

    def _held(self, kinds: Collection[str], attribute: str) -> int:
        made = [self._text.attributes.get((kind, attribute)) for kind in kinds]
        records = [one for some in made for one in some or ()]
        later = self._text.written_later.get(attribute, [])
        if records:
            return self._together(records + later)
        every = [one for kind in kinds for one in self._text.calls.get(kind, ())]
        return self._joined(every) | self._together(later)

    def _together(self, records: Iterable[Assignment]) -> int:
        label = 0
        for record in records:
            label |= self._of_record(record)
        return label

    def _joined(self, nodes: Iterable[tuple[Function | None, ast.AST]]) -> int:
        label = 0
        for scope, node in nodes:
            label |= self._of(scope, node)
        return label

    # ------------------------------------------------------------------------- the fixed point

    def _follow(self) -> None:
        todo, readers = dict.fromkeys(self._text.records), dict[Name, dict[Assignment, None]]()
        while todo:
            record, _ = todo.popitem()
            self._read = set()
            label = self._of_record(record)
            for name in self._read:
                readers.setdefault(name, {})[record] = None
            for target in record.targets:
                new = label if not any(word in target[1].lower() for word in ALIKE) else 0
                known = self._labels.get(target, 0)
                new = computed(known | new) if target in self._carried else known | new
                if new != known:
                    self._labels[target] = new
                    todo.update(readers.pop(target, {}))

    def _of_record(self, record: Assignment) -> int:
        self._turns = record.turns
        label, chosen = self._of(record.scope, record.value), MOVES if record.moves else 0
        for test in record.tests:
            chosen |= self._of(record.scope, test)
        return computed(label | chosen) if chosen else label

    @staticmethod
    def _sum(labels: Iterable[int]) -> int:
        whole = 0
        for label in labels:
            whole |= label
        return computed(whole)

    def _label(self, name: Name) -> int:
        self._read.add(name)
        return self._labels.get(name, 0)

    def _of(
        self, scope: Function | None, node: ast.AST, bound: frozenset[str] = frozenset()
    ) -> int:
        match node:
            case ast.Constant(value=value):
                return OWN if isinstance(value, str) and value in ASKED else 0
            case ast.Name(id=name):
                return 0 if name in bound else self._label(self._text.project.named(scope, name))
            case ast.Attribute(value=owner, attr=name):
                return self._of_attribute(scope, owner, name, bound)
            case ast.Call():
                return self._of_call(scope, node, bound)
            case ast.Lambda() | ast.FunctionDef() | ast.AsyncFunctionDef():
                return self._of_function(scope, node)
            case _ if isinstance(node, COMPREHENSION):
                within = bound | {one for part in node.generators for one in bound_names([part])}
                return self._sum(self._of(scope, one, within) for one in children(node))
        parts = [self._of(scope, one, bound) for one in children(node)]
        if not isinstance(node, DISPLAYS):
            return self._sum(parts)
        label = 0
        for part in parts:
            label |= part
        return label

    def _of_attribute(
        self, scope: Function | None, owner: ast.expr, name: str, bound: frozenset[str]
    ) -> int:
        label, known = self._label((ATTRIBUTE, name)), name in self._text.stored
        if name in self._text.project.decorated:
            for function in self._text.project.functions.get(name, ()):
                label |= self._label((id(function), RESULT))
                known = True
        return label if label or known else self._of(scope, owner, bound)

    def _of_call(self, scope: Function | None, call: ast.Call, bound: frozenset[str]) -> int:
        name, label = name_of(call.func), 0
        given = [self._of(scope, one, bound) for one in (*call.args, *call.keywords)]
        if name == "partial" or name[:1].isupper() or name in self._text.classes:
            for part in given:
                label |= part
            return label
        if functions := self._text.project.functions.get(name):
            for function in functions:
                label |= self._label((id(function), RESULT))
            return label
        owner = call.func.value if isinstance(call.func, ast.Attribute) else call.func
        given.append(self._of(scope, owner, bound))
        if isinstance(call.func, ast.Attribute):
            given.append(self._label((ATTRIBUTE, name)))
        drawn = name == "next" or any(word in name.lower() for word in DRAWS)
        return self._sum([*given, MOVES if drawn and self._turns else 0])

    def _of_function(
        self, scope: Function | None, node: ast.AST, asked: Collection[str] | None = None
    ) -> int:
        """The label of all that it reads around itself, each by itself: it computes later."""
        names, members, defaults = self._text.free_in(node)
        label = 0
        for name in names if asked is None else names.intersection(asked):
            label |= self._label(self._text.project.named(scope, name))
        for name in members if asked is None else ():
            label |= self._label((ATTRIBUTE, name))
        for default in defaults:
            label |= self._of(scope, default)
        return label
