"""What the runtime learns of a microbatch: how often it goes backward, whether it seeds first."""

from types import SimpleNamespace

import pytest
import torch

from recoverrun.hooks.runtime import Refused, ScriptRuntime
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


@pytest.mark.parametrize("times", [1, 3])
def test_slices_of_a_batch_that_was_drawn_before_them_are_one_microbatch(times: int) -> None:
    runtime = ScriptRuntime(own_rank=0)
    runtime.senses = TorchSenses()
    for name in ("steps", "slices"):
        runtime.register(loop(name))
    source = SimpleNamespace(ended=False, count=0)

    def step() -> None:
        runtime.top("steps", {}, globals())
        runtime.drawn(source, 0, object(), learning=True)  # type: ignore[arg-type]
        for _ in runtime.iterate("slices", range(times)):
            runtime.top("slices", {}, globals())
            runtime.note_backward()

    steps = iter(runtime.iterate("steps", range(2)))
    next(steps)
    step()
    runtime.shape = shape = runtime.learn()

    assert (shape.region.id, shape.microbatches, shape.backwards) == ("steps", 1, times)
    assert (shape.slices, len(runtime.microbatches)) == (times, 1)
    runtime.begin_step()
    next(steps)
    step()
    assert [(one.turn.loop.id, one.backwards) for one in runtime.microbatches] == [("steps", times)]


def test_slices_of_several_batches_a_step_are_not_served() -> None:
    runtime = ScriptRuntime(own_rank=0)
    runtime.senses = TorchSenses()
    for name in ("steps", "slices"):
        runtime.register(loop(name))
    source = SimpleNamespace(ended=False, count=0)
    for _ in runtime.iterate("steps", range(2)):
        runtime.top("steps", {}, globals())
        runtime.drawn(source, 0, object(), learning=True)  # type: ignore[arg-type]
        for _ in runtime.iterate("slices", range(2)):
            runtime.top("slices", {}, globals())
            runtime.note_backward()
        if len(runtime.microbatches) == 4:
            with pytest.raises(Refused, match="cannot be drawn again for another rank"):
                runtime.learn()
