"""Changes lines of modules as they are loaded, in every process of a run that says so."""

import importlib.abc
import importlib.machinery
import json
import os
import sys
from collections.abc import Sequence
from types import CodeType, ModuleType

MUTANT = json.loads(os.environ.get("HUNT_MUTANT", "{}"))


class Loader(importlib.machinery.SourceFileLoader):
    """Compiles the changed text, whatever is in the cache."""

    def get_code(self, fullname: str) -> CodeType:
        with open(self.path, encoding="utf-8") as file:
            text = file.read()
        for old, new in MUTANT[fullname]:
            found = text.count(old)
            if found != 1:
                raise ImportError(f"{old!r} is {found} times in {fullname}")
            text = text.replace(old, new)
        return compile(text, self.path, "exec")


class Finder(importlib.abc.MetaPathFinder):
    """Knows the modules with changes."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in MUTANT:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = Loader(fullname, spec.origin)
        return spec


if MUTANT:
    sys.meta_path.insert(0, Finder())
