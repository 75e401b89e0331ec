"""`torch.compile` leaves some frames alone: ours below a compiled model.

While a compiled function runs, the compiler is asked about every frame that begins below it. Those
of torch's own wrappers (DDP's forward, say) it passes over by their folders. Ours stand in the
place of such ones.
"""

from types import ModuleType
from typing import Any

from recoverrun.worker import own_files
from recoverrun.worker.patches.monkeypatch import replace

MODULE = "torch._dynamo.trace_rules"


def pass_over_ours(trace_rules: ModuleType) -> None:
    """Let the compiler begin at no frame of our files. What a compiled frame calls is inlined."""

    def asking(original: Any) -> Any:
        def wrapper(filename: str | None, is_inlined_call: bool = False) -> Any:
            if filename is not None and not is_inlined_call and own_files.has(filename):
                return trace_rules.SkipResult(True, "a frame of recoverrun")
            return original(filename, is_inlined_call)

        return wrapper

    replace(trace_rules, "check_file", asking)
