"""Names that code hands to functions of the script as they are: `train(model, history)`.

Code that calls such a function reads of those names what the function reads of its parameters, or
what functions read that it hands them to. Of any other callee nothing is known: it reads all.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePath

from recoverrun.worker.analysis.module_facts import CodeFacts, ModuleFacts

Parameter = tuple[str, str, int | str]
"""The file of a call, the name of its callee, and the place or the keyword of an argument."""


class HandedNames:
    """Answers for all `modules` together, which are known by their files."""

    def __init__(self, modules: Mapping[str, ModuleFacts]) -> None:
        self._modules = modules
        self._files: dict[tuple[str, str], str] = {}  # of a callee, by file of the call and name

    def read(self, filename: str, code: CodeFacts) -> set[str]:
        """The names among those that `code`, in this file, hands on, and that are read by it."""
        return self._whose(filename, code, _reads)

    def added_to(self, filename: str, code: CodeFacts) -> set[str]:
        """Those to which something is added."""
        return self._whose(filename, code, _adds)

    def _whose(
        self, filename: str, code: CodeFacts, does: Callable[[CodeFacts | None, int | str], bool]
    ) -> set[str]:
        return {
            name
            for callee, place, name in code.handed
            if any(does(*one) for one in self._parameters((filename, callee, place)))
        }

    def _parameters(self, first: Parameter) -> Iterator[tuple[CodeFacts | None, int | str]]:
        """All parameters that an argument may come to, each with its function; None instead of a
        function that is not known.
        """
        seen, todo = {first}, [first]
        while todo:
            filename, callee, place = todo.pop()
            home = self._home(filename, callee)
            functions = self._modules[home].functions.get(callee) if home else None
            if not functions:
                yield None, place
            for function in functions or ():
                yield (None if function.implicit or function.reflects else function), place
                name = _name(function, place)
                more = {(home, other, at) for other, at, given in function.handed if given == name}
                todo += more - seen
                seen |= more

    def _home(self, filename: str, callee: str) -> str:
        """The file that has what goes by this name in another one, "" if that is not sure."""
        key = filename, callee
        if key not in self._files:
            self._files[key] = self._found(filename, callee)
        return self._files[key]

    def _found(self, filename: str, callee: str) -> str:
        facts = self._modules.get(filename)
        if facts is None or callee in facts.bound:
            return ""
        if callee in facts.defined:
            return "" if callee in facts.imported else filename
        if callee not in facts.imported:
            return ""
        level, module = facts.imported[callee]
        path = tuple(module.split(".")) if module else ()
        parents = PurePath(filename).parents
        if level > len(parents):
            return ""
        if level:
            path = (*parents[level - 1].parts, *path)
        homes = [one for one in self._modules if _is_of(one, path) or _is_of(one, (*path, INIT))]
        defining = [one for one in homes if callee in self._modules[one].defined]
        fit = len(homes) == len(defining) == 1
        return defining[0] if fit and callee not in self._modules[defining[0]].bound else ""


INIT = "__init__"


def _reads(function: CodeFacts | None, place: int | str) -> bool:
    return function is None or _name(function, place) in ("", *function.mentioned)


def _adds(function: CodeFacts | None, place: int | str) -> bool:
    return function is not None and _name(function, place) in function.counted


def _is_of(filename: str, path: tuple[str, ...]) -> bool:
    """True if the module of this dotted path may be in this file."""
    return bool(path) and PurePath(filename).with_suffix("").parts[-len(path) :] == path


def _name(function: CodeFacts, place: int | str) -> str:
    """The parameter at this place, or of this keyword, "" if it cannot be told."""
    if isinstance(place, int):
        return "".join(function.parameters[place : place + 1])
    return place if place in function.keywords else ""
