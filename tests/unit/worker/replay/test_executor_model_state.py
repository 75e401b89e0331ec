"""Groups, gradients and parameters: what re-executed code finds, and what it leaves."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from recoverrun.worker.errors import NotReplayable
from recoverrun.worker.replay import captures as captures_module
from recoverrun.worker.replay.executed import Misled
from recoverrun.worker.replay.lost_rank import LostRank
from recoverrun.worker.rng.registry import Registry
from recoverrun.worker.tracking.microbatches import Microbatch
from tests.unit.worker.replay.test_executor import Rank
from tests.unit.worker.replay.test_substitution_containers import Stage

pytestmark = pytest.mark.usefixtures("streams_put_back", "signals_put_back")


@pytest.fixture(autouse=True)
def _registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(captures_module, "REGISTRY", Registry())
    yield


class Coded(Rank):
    """A script with code of its own before each forward; it trains one parameter."""

    def __init__(self, code: Callable[["Coded", Any], None] = lambda script, part: None) -> None:
        super().__init__()
        self.param = nn.Parameter(torch.zeros(2))
        self.optimizer = torch.optim.SGD([self.param], lr=0.5)
        self.executor.optimizers.add(self.optimizer)
        self.code = code
        self.layers = [nn.Parameter(torch.ones(1)) for _ in range(3)]
        self.forwards: list[float] = []  # the parameter at each forward of an execution
        self.entered = self.executor.skips
        self.executor.skips = self._skips  # type: ignore[method-assign]

    @property
    def again(self) -> bool:
        return self.runtime.acting_rank is not None

    def _one(self, part: Any) -> None:
        self.code(self, part)
        super()._one(part)

    def _skips(self) -> bool:
        if self.again:
            self.forwards.append(float(self.param.detach()[0]))
        return self.entered()

    def trained(self, *parts: int) -> Microbatch:
        """The last backward of an iteration with so many."""
        self.run("flat", [list(parts)])
        return self.runtime.microbatches[-1]

    def freshly(self, microbatch: Microbatch) -> None:
        self.executor.execute_fresh(microbatch)

    def as_another(self, microbatch: Microbatch) -> None:
        """As a rank that stands where this one stood."""
        mine = microbatch.top.context
        assert mine is not None
        lost = LostRank(1, apart=False)
        lost.learn(mine, mine)
        state = lost.at(mine.point, self.executor.captures.points)
        self.executor.execute(1, state, self.step, microbatch)


Way = Callable[[Coded, Microbatch], None]
WAYS = pytest.mark.parametrize("way", [Coded.freshly, Coded.as_another])


# --------------------------------------------------------------------------- groups


def unfreezes(script: Coded, part: Any) -> None:
    """Every part trains one parameter more; torch refuses one that is trained already."""
    script.optimizer.add_param_group({"params": [script.layers[part]]})


@WAYS
def test_code_that_adds_a_group_finds_those_that_were_there_as_the_iteration_began(
    way: Way,
) -> None:
    script = Coded(unfreezes)
    microbatch = script.trained(0, 1)
    counts: list[int] = []

    def counted(script: Coded, part: Any) -> None:
        counts.append(len(script.optimizer.param_groups))
        unfreezes(script, part)

    script.code = counted
    way(script, microbatch)

    assert counts == [1, 2] and script.executed == [1]


@WAYS
def test_groups_are_as_they_were_after_code_has_added_one(way: Way) -> None:
    script = Coded(unfreezes)
    microbatch = script.trained(0, 1)
    script.trained(2)  # the next iteration adds another one
    groups, before = script.optimizer.param_groups, script.optimizer.param_groups[:]

    way(script, microbatch)

    assert script.optimizer.param_groups is groups and len(before) == 4
    assert all(now is then for now, then in zip(groups, before, strict=True))


def test_an_optimizer_that_was_made_since_then_keeps_its_groups() -> None:
    script = Coded()
    microbatch = script.trained(1)
    late = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.5)
    script.executor.optimizers.add(late)

    script.freshly(microbatch)

    assert len(late.param_groups) == 1


@pytest.mark.parametrize("where", ["module", "global", "function"])
def test_another_rank_s_place_has_the_groups_of_its_top_wherever_the_loop_is(where: str) -> None:
    stage, script = Stage(where, [1], [1]), Coded(unfreezes)
    groups = script.optimizer.param_groups
    stage.top.groups = [(script.optimizer, groups[:])]
    script.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})

    stage.apply()
    dressed = len(groups)
    stage.revert()

    assert (dressed, len(groups)) == (1, 2)


# --------------------------------------------------------------------------- gradients


class Sharp(Coded):
    """Every backward is a transaction, which leaves ten times its part in the gradient."""

    def __init__(self) -> None:
        super().__init__(lambda script, part: self.found.append(self._gradient()))
        self.found: list[float | None] = []  # before each forward

    def _gradient(self) -> float | None:
        return None if self.param.grad is None else float(self.param.grad[0])

    def _one(self, part: Any) -> None:
        super()._one(part)
        if not self.again:
            number = part[-1] if isinstance(part, tuple) else part
            self.param.grad = torch.full((2,), 10.0 * number)
            self.last = self.runtime.microbatches[-1]
            self.executor.earlier.ended(self.runtime.microbatches, [self.optimizer])
            self.runtime.begin_step()

    def trained(self, *parts: int) -> Microbatch:
        self.run("flat", [list(parts)])
        self.found.clear()
        self.param.grad = None  # set aside
        return self.last


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_passed_over_backward_leaves_the_gradients_that_it_left_then(count: int) -> None:
    script = Sharp()
    script.trained(7, 8, 9)
    parts = [1, 2, 3][:count]
    microbatch = script.trained(*parts)

    script.freshly(microbatch)

    assert script.executed == [count]
    assert script.found == [None, 10.0, 20.0][:count]


@WAYS
@pytest.mark.parametrize("had", [False, True], ids=["none", "some"])
def test_gradients_are_afterwards_what_they_were(had: bool, way: Way) -> None:
    """Those of parameters to which no backward has come: no strategy puts them back."""
    script = Sharp()
    script.trained(7, 8, 9)
    microbatch = script.trained(1, 2, 3)
    script.param.grad = before = torch.ones(2) if had else None

    way(script, microbatch)

    assert script.found[-1] == 20.0, "some were given"
    assert script.param.grad is before


@WAYS
def test_gradients_are_what_they_were_after_an_end_that_is_no_backward(way: Way) -> None:
    script = Sharp()
    script.trained(7, 8)
    microbatch = script.trained(1, 2)

    def ends(script: Coded, part: Any) -> None:
        if script.param.grad is not None:
            raise LookupError("no batch")

    script.code = ends
    with pytest.raises(NotReplayable, match="the script's code raised"):
        way(script, microbatch)

    assert script.param.grad is None


@WAYS
def test_iterations_of_an_inner_loop_leave_theirs_to_an_outer_one(way: Way) -> None:
    """The outer loop is the one from which microbatches are executed again."""
    script = Sharp()
    loops = script.tracker.loops.values()
    _, (_, inner) = sorted((one.line, one.id) for one in loops if one.qualname == "inner")
    script.runtime.outward = {inner: 1}
    script.run("inner", [0, 1], [1, 2, 3])
    script.found.clear()
    script.param.grad = None

    way(script, script.last)

    assert script.executed == [(1, 3)] and script.found == [None, 10.0, 20.0]


def test_gradients_of_another_iteration_are_not_left() -> None:
    script = Sharp()
    before = script.trained(1, 2)
    script.trained(3, 4)

    script.freshly(before)

    assert script.executed == [2] and script.found == [None, None]


def test_fresh_data_of_fewer_parts_pass_over_backwards_from_the_first_on() -> None:
    script, parts = Sharp(), [1, 2, 3]
    script.run("flat", [parts])
    script.found.clear()
    script.param.grad = None
    del parts[2:]

    script.freshly(script.last)

    assert script.executed == [2]
    assert script.found[-1] == 10.0, "whatever was tried before"


# --------------------------------------------------------------------------- parameters


def rewrites(script: Coded, part: Any) -> None:
    with torch.no_grad():
        script.param.add_(1.0)


def rewrites_through_data(script: Coded, part: Any) -> None:
    script.param.data.add_(1.0)


def replaces_data(script: Coded, part: Any) -> None:
    script.param.data = script.param.detach() + 1.0


CODE = pytest.mark.parametrize("code", [rewrites, rewrites_through_data, replaces_data])


@WAYS
@CODE
@pytest.mark.parametrize("count", [1, 2, 3])
def test_parameters_that_code_changes_are_at_each_forward_what_they_are(
    count: int, code: Callable[[Coded, Any], None], way: Way
) -> None:
    """All that the code changed before its last backward was changed once already."""
    script = Coded(code)
    script.executor.rewrites = True
    microbatch = script.trained(*range(1, count + 1))

    way(script, microbatch)

    assert script.forwards == [float(count)] * count and script.executed == [count]


@WAYS
@CODE
def test_parameters_that_code_has_changed_are_afterwards_what_they_were(
    code: Callable[[Coded, Any], None], way: Way
) -> None:
    script = Coded(code)
    script.executor.rewrites = True
    microbatch = script.trained(1, 2)
    version = script.param._version

    way(script, microbatch)

    assert script.param.tolist() == [2.0, 2.0]
    assert script.param._version == version, "graphs that the script keeps are still good"


def test_parameters_of_code_that_is_not_known_to_change_them_are_not_held() -> None:
    """They are large; and a proof finds out by it."""
    script = Coded(rewrites)
    microbatch = script.trained(1)

    script.freshly(microbatch)

    assert script.forwards == [2.0] and script.param.tolist() == [2.0, 2.0]


def test_parameters_of_our_own_forwards_are_never_put_back() -> None:
    script = Coded(rewrites)
    script.executor.rewrites = True

    script.trained(1, 2, 3)

    assert script.param.tolist() == [3.0, 3.0]


# --------------------------------------------------------------------------- parts of models


@WAYS
def test_code_that_makes_a_model_deeper_is_no_microbatch_of_another_rank(way: Way) -> None:
    model = nn.Sequential(nn.Linear(1, 1))
    script = Coded(lambda script, part: model.append(nn.Linear(1, 1)) and None)
    script.run("leading", [1], 1, [model])

    with pytest.raises(NotReplayable, match="gives Sequential other submodules"):
        way(script, script.runtime.microbatches[-1])

    assert len(model) == 2 and not script.executed


# --------------------------------------------------------------------------- what ranks are told


class Steered(Coded):
    """A script that trains while all ranks agree to go on."""

    def _one(self, part: Any) -> None:
        agreed = torch.ones(1)
        if (self.executor.unheard(agreed) if self.again else agreed) == 1:
            super()._one(part)


@pytest.mark.parametrize("proves", [True, False])
def test_a_word_of_other_ranks_that_ends_training_is_named(proves: bool) -> None:
    script = Steered()
    microbatch = script.trained(0)
    script.executor.proves = proves

    with pytest.raises(Misled, match="tell each other .* decide whether it is reached"):
        script.as_another(microbatch)

    assert not script.executed
