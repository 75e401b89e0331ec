"""Re-executed code that ends otherwise than in a backward ends no survivor."""

import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from recoverrun.worker.errors import NotReplayable
from recoverrun.worker.replay import captures as captures_module
from recoverrun.worker.replay.containment import GivenUp
from recoverrun.worker.rng.registry import Registry
from tests.unit.worker.replay.test_executor_model_state import WAYS, Coded, Way

pytestmark = pytest.mark.usefixtures("streams_put_back", "signals_put_back")


@pytest.fixture(autouse=True)
def _registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(captures_module, "REGISTRY", Registry())
    yield


def raise_error() -> None:
    raise LookupError("no batch")


def end_iteration() -> None:
    raise StopIteration


def leave() -> None:
    sys.exit(3)


def interrupt() -> None:
    raise KeyboardInterrupt


ENDS = {"error": raise_error, "no data": end_iteration, "exit": leave, "interrupt": interrupt}


def ending(end: str) -> Coded:
    """Code that, where it is executed again, changes what it finds and comes to this end."""

    def code(script: Coded, part: Any) -> None:
        if script.again:
            script.optimizer.param_groups[0]["lr"] = 9.0
            script.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
            with torch.no_grad():
                script.param.add_(1.0)
            ENDS[end]()

    script = Coded(code)
    script.executor.rewrites = True
    return script


@WAYS
@pytest.mark.parametrize(
    ("end", "kind"),
    [
        ("error", NotReplayable),
        ("no data", NotReplayable),
        ("exit", GivenUp),
        ("interrupt", GivenUp),
    ],
)
def test_code_that_ends_otherwise_than_in_a_backward_ends_no_survivor(
    end: str, kind: type[Exception], way: Way
) -> None:
    script = ending(end)
    microbatch = script.trained(1)

    with pytest.raises(NotReplayable, match="the script's code raised") as caught:
        way(script, microbatch)

    assert type(caught.value) is kind


@WAYS
@pytest.mark.parametrize("end", ENDS)
def test_everything_is_put_back_after_such_an_end(end: str, way: Way) -> None:
    script = ending(end)
    microbatch, group = script.trained(1), script.optimizer.param_groups[0]
    before = (
        sys.stdout,
        script.runtime.acting_rank,
        script.executor.fresh,
        torch.is_grad_enabled(),
    )

    with pytest.raises(NotReplayable):
        way(script, microbatch)

    after = (sys.stdout, script.runtime.acting_rank, script.executor.fresh, torch.is_grad_enabled())
    assert after == before == (sys.stdout, None, False, True)
    assert script.optimizer.param_groups == [group] and group["lr"] == 0.5
    assert "step" not in vars(script.optimizer), "updates are made again"
    assert script.param.tolist() == [0.0, 0.0] and script.executor._weights is None


@WAYS
def test_after_such_an_end_the_same_microbatch_can_be_executed(way: Way) -> None:
    script = ending("error")
    microbatch = script.trained(1)
    with pytest.raises(NotReplayable):
        way(script, microbatch)
    script.code = lambda script, part: None

    way(script, microbatch)

    assert script.executed == [1]


@pytest.mark.parametrize("end", ENDS)
def test_fresh_data_that_cannot_be_read_end_no_survivor(
    end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Coded()
    microbatch = script.trained(1)
    monkeypatch.setattr(script.executor.items, "of", lambda top, rank, **how: ENDS[end]())

    with pytest.raises(NotReplayable, match="the script's code raised"):
        script.freshly(microbatch)

    assert script.runtime.acting_rank is None and not script.executor.fresh
