"""What the runtime learns of a microbatch: how often it goes backward, whether it seeds first."""

import pytest
import torch

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


@pytest.mark.parametrize("drawn", [False, True])
def test_a_microbatch_seeds_torch_s_numbers_before_it_draws_or_after(drawn: bool) -> None:
    runtime = ScriptRuntime(own_rank=0)
    runtime.senses = TorchSenses()
    runtime.register(loop("steps"))
    for step in runtime.iterate("steps", range(3)):
        runtime.top("steps", locals(), globals())
        if drawn:
            torch.rand(1)
        if step:
            runtime.seeding()
            torch.manual_seed(step)
            torch.rand(1)
            runtime.seeding()  # again: the first one counts
            torch.manual_seed(step)
        runtime.note_backward()

    assert [one.seeded for one in runtime.microbatches] == [False, not drawn, not drawn]


@pytest.mark.parametrize("drawn", [False, True])
def test_code_in_another_rank_s_place_must_seed_before_it_draws(drawn: bool) -> None:
    runtime = ScriptRuntime(own_rank=0)
    runtime.senses = TorchSenses()
    runtime.acting_rank = 1
    runtime.untold = runtime.senses.streams(None)
    if drawn:
        torch.rand(1)

    runtime.seeding()

    assert (runtime.untold is not None) == drawn
