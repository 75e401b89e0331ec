"""How often a microbatch goes backward, as the runtime learns it at the first commit point."""

import pytest

from recoverrun.hooks.runtime import ScriptRuntime
from recoverrun.hooks.script import Loop
from recoverrun.hooks.senses import TorchSenses


def loop(name: str) -> Loop:
    none: frozenset[str] = frozenset()
    return Loop(
        id=name, kind="for", filename="train.py", line=1, module_level=False, qualname="main",
        assigned=none, live_in=none, carried=none, targets=none, global_names=none,
        item_code=None, body_code=None, refusal="",
    )  # fmt: skip


@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize("batches", [range(3), [0, 1, 2]], ids=["range", "items"])
def test_passes_of_an_inner_loop_are_counted_after_it_is_over(times: int, batches: object) -> None:
    runtime = ScriptRuntime(own_rank=0)
    runtime.senses = TorchSenses()
    for name in ("steps", "micro"):
        runtime.register(loop(name))
    for _ in runtime.iterate("steps", [0]):
        runtime.top("steps", locals(), globals())
        for _ in runtime.iterate("micro", batches):  # type: ignore[arg-type]
            runtime.top("micro", locals(), globals())
            for _ in range(times):
                runtime.note_backward()

        shape = runtime.learn()

    assert (shape.microbatches, shape.backwards) == (3, times)
