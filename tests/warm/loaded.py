"""The modules that the template has when it begins to fork."""

import importlib
import os
from collections.abc import Mapping
from dataclasses import dataclass

from recoverrun.worker.boot import spare
from tests.warm.seen_by_system import SeenBySystem

OFTEN = ("numpy", "torch.distributed.fsdp", "recoverrun.cli.commands.run")
"""What scripts import besides that which each worker needs, and what launchers do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    seen: SeenBySystem
    began_with: Mapping[str, str]  # the environment
    set_by_imports: Mapping[str, str]
    copies: list[spare.ImportedAlias]


def load() -> Loaded:
    """Import it all."""
    del os.environ["ROOM"]
    seen, began_with = SeenBySystem(), dict(os.environ)
    for name in OFTEN:
        importlib.import_module(name)
    copies = spare.prepared()
    added = {name: value for name, value in os.environ.items() if name not in began_with}
    return Loaded(seen=seen, began_with=began_with, set_by_imports=added, copies=copies)
