"""The names that a microbatch may depend on, read from the script's text."""

import ast

import pytest
import torch

from recoverrun.worker.analysis import program_slice
from recoverrun.worker.analysis.module_facts import facts_of
from recoverrun.worker.analysis.program_slice import (
    SliceNames,
    Texts,
    slice_before_backward,
    written_first,
)
from recoverrun.worker.context import fingerprints
from recoverrun.worker.instrumentation import Loop
from recoverrun.worker.rewriting.loop_transformer import instrument
from tests.unit.call_graphs import graph_of

TRAINER = """
def augment(x, strength):
    return x * strength * SCALE

class Loader:
    def __init__(self): self.position = 0
    def next_batch(self):
        self.position += self.stride
        if self.position > 9: self.tokens = self.files[self.current]
        return self.tokens

class Trainer:
    def add(self, callback): self.callbacks.append(callback)
    def report(self): print(self.seconds, self.running)
    def fit(self, loader):
        running = 0.0
        while True:
            x = augment(loader.next_batch(), self.strength)
            loss = self.model(x)
            running += loss.item()
            loss.backward()
            self.seconds = clock() - self.started
            self.started = clock()
            self.report()
            for callback in self.callbacks: callback(self)

def on_end(trainer): print(trainer.watched)
Trainer().add(on_end)
"""


def _reads(source: str, **modules: str) -> SliceNames | None:
    (loop,) = _loops(source)
    return slice_before_backward(loop, _texts(source, **modules))


def _loops(source: str) -> tuple[Loop, ...]:
    names = graph_of(ast.parse(source)).backward_names()
    return instrument(ast.parse(source), "train.py", names).loops


def _texts(source: str, **modules: str) -> Texts:
    files = {"train.py": source, **{f"{name}.py": text for name, text in modules.items()}}
    return Texts({name: text.encode() for name, text in files.items()})


def test_what_the_code_before_the_backward_reads_matters() -> None:
    reads = _reads(TRAINER)

    assert reads is not None
    assert {"stride", "files", "current", "tokens", "position", "strength"} <= reads.attributes
    assert "SCALE" in reads.variables


def test_stopwatches_and_running_sums_do_not_matter() -> None:
    reads = _reads(TRAINER)

    assert reads is not None
    assert reads.attributes.isdisjoint({"seconds", "started", "running", "callbacks", "watched"})
    assert "running" not in reads.variables


@pytest.mark.parametrize(
    "before",
    [
        "x = self.hooks[0](x)",  # which one is called cannot be told: any that is handed around
        "for hook in hooks: x = hook(x)",
        "x = on_start(x)",
        "x = next(feed)",  # a generator
        "x = DataLoader(x, collate_fn=on_start)",
        "x = getattr(self, 'watched')",
        "x = Thing(x)",
        "x = x.shape_of_mine",
    ],
)
def test_what_may_be_reached_in_a_roundabout_way_matters(before: str) -> None:
    source = f"""
def on_start(x): return x + trainer.watched
def feed():
    yield trainer.watched
class Thing:
    def __init__(self, x): self.x = trainer.watched
class Other:
    @property
    def shape_of_mine(self): return trainer.watched
register(on_start)
def own(x): return x
def train(self, loader, hooks):
    own(on_start)
    for x in loader:
        {before}
        x.backward()
"""
    reads = _reads(source)

    assert reads is None or "watched" in reads.attributes


FRAMEWORK = """
class Trainer:
    def train(self):
        self.epochs()
        self.finish()
    def epochs(self):
        for batch in self.loader:
            self.model.train()
            {before}
            self.model(batch).backward()
            self.total += 1
    def finish(self): print(self.total)
class Other:
    def epochs(self): print(self.total)
"""


def test_code_around_the_loop_does_not_run_within_it() -> None:
    reads = _reads(FRAMEWORK.format(before="pass"))

    assert reads is not None
    assert "loader" in reads.attributes and "total" not in reads.attributes


@pytest.mark.parametrize("before", ["other.epochs()", "self.finish()"])
def test_what_only_has_the_name_of_the_code_around_the_loop_may_run(before: str) -> None:
    reads = _reads(FRAMEWORK.format(before=before))

    assert reads is not None and "total" in reads.attributes


@pytest.mark.parametrize("expression", ["vars(self)['a']", "self.__dict__['a']", "eval('self.a')"])
def test_nothing_is_claimed_of_code_that_looks_at_itself(expression: str) -> None:
    assert _reads(f"for x in loader:\n    ({expression} + x).backward()") is None


def test_nothing_is_claimed_where_the_source_is_not_at_hand() -> None:
    (loop,) = _loops("for x in loader:\n    x.backward()")

    assert slice_before_backward(loop, Texts()) is None


BATCHES = """
from data import fetch, STATS
for batch in loader:
    total = fetch(batch, STATS)
    total.backward()
"""


def test_variables_that_another_module_reads_by_the_same_name_matter() -> None:
    module = "STATS = {}\ndef fetch(batch, size):\n    def near(): return size\n    return STATS"

    reads = _reads(BATCHES, data=module)

    assert reads is not None and "STATS" in reads.variables
    assert "size" not in reads.variables  # a variable of a function there


@pytest.mark.parametrize(
    ("before", "written"),
    [
        ("feed.rows = cut(x)", {"rows"}),
        ("if not feed.rows: feed.rows = cut(x)", set()),
        ("for y in feed: feed.rows = y", set()),
        ("with lock as held: feed.rows = cut(x)", {"rows", "held"}),
        ("feed.rows[0] = feed.at = x", {"at"}),
        ("feed.at += 1", set()),
    ],
)
def test_names_that_each_iteration_writes_before_the_backward_are_known(
    before: str, written: set[str]
) -> None:
    reads = _reads(f"for x in xs:\n    {before}\n    x.backward()\n    feed.more = x")

    assert reads is not None and reads.written == {*written, "x"}


def test_a_loop_in_the_way_writes_what_it_writes_before_its_backward() -> None:
    body = "    feed.rows = cut(x)\n    with lock:\n        feed.at = 1\n        x.backward()"

    reads = _reads(f"while x:\n{body}")

    assert reads is not None and reads.written == {"rows", "at"}


def test_of_two_ways_to_a_backward_both_have_to_write() -> None:
    ways = "feed.rows = feed.at = x\n        x.backward()\n    else:\n        feed.at = x"

    reads = _reads(f"for x in xs:\n    if x:\n        {ways}\n        x.backward()")

    assert reads is not None and reads.written == {"at", "x"}


@pytest.mark.parametrize(
    ("loop", "paths"),
    [
        ("for k, x in enumerate(feed.rows):\n    x.backward()", {"enumerate", "feed.rows"}),
        ("for x in feed.rows:\n    (x + feed.rows[0]).backward()", set()),
        ("for x in feed.rows:\n    (x / len(feed.rows)).backward()", {"feed.rows"}),
        ("for x in rows:\n    x.backward()\n    print(rows)", {"rows"}),
        ("while rows:\n    rows[0].backward()", set()),
    ],
)
def test_paths_that_the_loop_goes_over_are_known(loop: str, paths: set[str]) -> None:
    reads = _reads(loop)

    assert reads is not None and reads.gone_over == paths


@pytest.mark.parametrize("method", ["append", "extend", "appendleft"])
@pytest.mark.parametrize("log", ["log", "self.log"])
def test_a_log_that_code_adds_to_is_not_read(log: str, method: str) -> None:
    """A list of losses, with two steps in an iteration, made each later one `equal-count`."""
    reads = _reads(f"for x in xs:\n    {log}.{method}(x.loss)\n    x.backward()")

    assert reads is not None and "loss" in reads.attributes
    assert "log" not in reads.variables | reads.attributes


@pytest.mark.parametrize("log", ["log", "self.log"])
@pytest.mark.parametrize(
    "use",
    [
        "{}['at'] = x.loss",
        "{}['at'] += x.loss",
        "{}[f'at {{x}}'] = x.loss",
        "{}['at'].append(x.loss)",
        "{}['at']['step'] = x.loss",
    ],
)
def test_a_log_by_name_is_not_read(log: str, use: str) -> None:
    """`metrics["loss"] += loss.item()` made each later step of an epoch `equal-count`."""
    reads = _reads(f"for x in xs:\n    {use.format(log)}\n    x.backward()")

    assert reads is not None and "loss" in reads.attributes
    assert "log" not in reads.variables | reads.attributes


@pytest.mark.parametrize(
    "use",
    [
        "last = log.append(x)",
        "log.append(log[-1] + x)",
        "log.append(x)\n    x += log[0]",
        "log[x] = 1",
        "log[0] = x",
        "log['at'] = log['before']",
        "x = log['at']",
        "log['at'](x)",
        "del log['at']",
    ],
)
def test_a_log_of_which_code_makes_something_is_read(use: str) -> None:
    reads = _reads(f"for x in xs:\n    {use}\n    x.backward()")

    assert reads is not None and "log" in reads.variables | reads.attributes


def test_names_to_which_another_module_adds_are_known() -> None:
    reads = _reads(BATCHES, data="at = 0\ndef fetch(batch, _):\n    global at\n    at += 1")

    assert reads is not None
    assert "at" in reads.counted and "at" not in reads.attributes


@pytest.mark.parametrize(
    "module",
    [
        "def fetch(b, s): return helper(b)\ndef helper(b): return b.watched",
        "def fetch(b, s): return b\nclass Rows:\n    def __len__(self): return self.watched",
        "fetch = pick\ndef pick(b, s):\n    def inner(): return b.watched\n    return inner()",
        "def fetch(b, s): return run(b)\ndef run(b):\n    (lambda: b.watched)()",
        "def made():\n    def fetch(b, s): yield b.watched\n    return fetch",
        "def fetch(b, s):\n    match b:\n        case Box(watched=1): return s",
        "class Fetch:\n    def __call__(self, b, s): return b.watched\nfetch = Fetch()",
        "def fetch(b, s):\n    class Row:\n        at = b.watched\n    return Row",
    ],
)
def test_what_another_module_reads_matters(module: str) -> None:
    reads = _reads(BATCHES, data=module)

    assert reads is not None and "watched" in reads.attributes


def test_the_facts_of_a_module_are_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    source = "def train(loader):\n" + 2 * "    for x in loader:\n        x.loss().backward()\n"
    texts = _texts(source, one="def loss(x): return x.a", two="def other(x): return x.b")
    found: list[ast.AST] = []
    monkeypatch.setattr(
        program_slice, "facts_of", lambda tree: [facts_of(tree), found.append(tree)][0]
    )

    reads = [slice_before_backward(loop, texts) for loop in _loops(source)]
    texts.sources["three.py"] = b"def loss(x): return x.c"
    more = slice_before_backward(_loops(source)[0], texts)

    assert [one is not None and "a" in one.attributes for one in reads] == [True, True]
    assert more is not None and {"a", "c"} <= more.attributes
    assert len(found) == 4


def test_marks_tell_large_data_apart() -> None:
    one, other = torch.arange(5000), torch.arange(5000) + 1
    names = {"tokens": one, "few": [1, 2], "many": list(range(100)), "text": "a"}

    marks = fingerprints.marks(names, 4096)

    assert sorted(marks) == ["many#", "tokens#"]
    assert (
        fingerprints.mark_of(one.clone())
        == fingerprints.mark_of(one)
        != fingerprints.mark_of(other)
    )
    one.add_(1)
    assert fingerprints.mark_of(one) == fingerprints.mark_of(
        other
    )  # changed in place: looked at again


def test_marks_of_arrays() -> None:
    numpy = pytest.importorskip("numpy")
    one = numpy.arange(9000).reshape(90, 100)

    assert (
        fingerprints.mark_of(one)
        == fingerprints.mark_of(one.copy())
        != fingerprints.mark_of(one + 1)
    )
    assert fingerprints.mark_of(one.T) != fingerprints.mark_of(one)


def test_names_that_a_body_writes_before_all_else() -> None:
    body = ast.parse("self.a.b = None\nc = d = e\nf = g()\nh = None").body

    assert written_first(body) == {"b", "c", "d"}
