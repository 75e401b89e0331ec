"""The table: rows of ways to write loops, data and steps, and with them those of all strategies."""

from typing import Any

from tests.compat.row import Row, going_back
from tests.compat.strategy_rows import (
    BY_HAND,
    DDP,
    FRAMEWORKS,
    FSDP1,
    FSDP2,
    HSDP,
    MESHES,
    ONE_REPLICA,
)

SHAPES = (
    Row(
        name="random-pieces",
        script="random_pieces.py",
        kills=("r1@step:3:forward", "r0@step:3:forward,r1@step:7:reduce"),
    ),
    Row(
        name="random-pieces-pair",
        script="random_pieces.py",
        ranks=2,
        kills=("r1@step:3:vote", "r0@step:4:vote"),
    ),
    *(
        Row(
            name=f"evaluating-{way}",
            script="evaluating.py",
            arguments=(way,),
            kills=("r1@step:2:forward,r0@step:6:vote",) if way in ("rank0", "top") else (),
        )
        for way in ("all", "rank0", "ahead", "pieces", "indexed", "top")
    ),
    Row(
        name="one-function",
        script="one_function.py",
        kills=("r1@step:3:forward,r0@step:10:vote", "r0@step:1:reduce"),
    ),
    Row(name="strided-files", script="strided_files.py", kills=("r0@step:5:backward",)),
    Row(name="trainer-class", script="trainer_class.py", kills=("r0@step:5:reduce",)),
    Row(name="epochs-modulo", script="epochs.py", kills=("r1@step:3:forward",)),
    Row(name="epochs-amp", script="epochs.py", arguments=("--amp",), apart=1e-3),
    Row(
        name="checked",
        script="checked.py",
        kills=("r0@step:2:reduce", "r1@step:4:vote,r0@step:6:forward"),
    ),
    Row(
        name="early-stop",
        script="early_stop.py",
        kills=("r0@step:2:reduce", "r1@step:1:vote,r0@step:5:forward"),
        victims=(1, 2),  # what rank 0 remembers of epochs before is lost with it
    ),
    *(
        Row(name=f"slices-{way}", script="slices.py", arguments=(way,), kills=kills)
        for way, kills in (
            ("chunks", ("r1@step:1:forward,r0@step:5:reduce",)),
            ("looped", ("r0@step:4:reduce,r2@step:9:vote",)),
            ("clipped", ("r1@step:3:forward",)),
        )
    ),
    Row(
        name="slices-hsdp",
        script="slices.py",
        arguments=("hsdp",),
        ranks=4,
        kills=("r3@step:4:forward",),
    ),
    Row(
        name="slices-by-hand",
        script="slices.py",
        arguments=("by-hand",),
        kills=("r1@step:3:forward",),
    ),
    Row(name="step-batches", script="step_batches.py", kills=("r2@step:3:reduce",)),
    Row(
        name="step-tokens",
        script="step_batches.py",
        arguments=("tokens",),
        kills=("r1@step:3:forward",),
    ),
    *(
        Row(
            name=f"module-level-{way}",
            script="module_level.py",
            arguments=(way,),
            kills=("r1@step:4:reduce,r0@step:7:forward",) if way == "plain" else (),
        )
        for way in ("plain", "views")
    ),
    Row(name="meters", script="habits.py", arguments=("meters",), kills=("r1@step:3:reduce",)),
    Row(name="share", script="habits.py", arguments=("share",), kills=("r0@step:4:vote",)),
    Row(name="share-anew", script="habits.py", arguments=("share-anew",)),
    Row(
        name="fetching-ahead",
        script="habits.py",
        arguments=("fetching-ahead",),
        kills=("r2@step:3:reduce",),
    ),
    Row(
        name="moving-on-late",
        script="habits.py",
        arguments=("moving-on-late",),
        kills=("r2@step:4:forward",),
    ),
    going_back(
        Row(name="shared-update", script="habits.py", arguments=("shared-update",)),
        why="Shared exchanges what ranks computed while it updates the parameters",
        apart=1e-12,  # DDP divides gradients otherwise in the first step of a wrapping
    ),
    Row(name="iterator-renewed", script="iterator_renewed.py"),
)


def own(feature: str, *kills: str, **more: Any) -> Row:
    """A row of `own_streams.py`."""
    return Row(
        name=f"own-{feature}", script="own_streams.py", arguments=(feature,), kills=kills, **more
    )


OWN_STREAMS = (
    own("numpy", "r1@step:3:reduce,r0@step:6:forward"),
    own("numpy-legacy"),
    own(
        "numpy-in-workers",
        promise="equal-count",
        why="the data set Noisy draws from a generator of its own in worker processes",
    ),
    own("seed-each-step", "r1@step:3:vote,r0@step:6:forward"),
    own("loader-generator"),
    own("global-shuffle"),
    own("strided-rows", "r0@step:2:vote,r1@step:8:forward"),
    own("listed-chunk"),
    own("sampler-rows"),
    own(
        "kept-rows",
        "r1@step:4:forward",
        promise="equal-count",
        why="the data set Kept, read as rank",
    ),
    own("logged-rows", "r1@step:3:forward,r0@step:6:reduce"),
    own("rows-by-chance"),
    own(
        "many-rows-by-chance",
        promise="equal-count",
        why="other rows of its data set, a list of more than 2048",
    ),
)


def recipe(way: str, kind: str = "", kill: str = "", **more: Any) -> Row:
    """A row of `recipe.py`."""
    return Row(
        name="-".join(filter(None, ("recipe", way, kind))),
        script="recipe.py",
        arguments=tuple(filter(None, (way, kind))),
        ranks=3 if way == "ddp" else 4,
        kills=(kill,) if kill else (),
        **more,
    )


RECIPES = (
    recipe("ddp", kill="r1@step:3:forward,r0@step:5:vote"),
    recipe("ddp", "packed"),
    recipe("ddp", "mean"),
    recipe("ddp", "late", kill="r1@step:3:forward", taken_back="is over 2 of 3 ranks"),
    recipe("hsdp", kill="r3@step:3:forward"),
)


METERED = (
    Row(name="metered-plain", script="metered.py", arguments=("plain",)),
    Row(
        name="metered-augmented",
        script="metered.py",
        arguments=("augmented",),
        kills=("r1@step:2:forward,r0@step:7:vote",),
    ),
    Row(
        name="metered-workers",
        script="metered.py",
        arguments=("workers",),
        kills=("r1@step:2:forward,r0@step:7:vote",),
    ),
    Row(
        name="pictures-workers",
        script="pictures.py",
        arguments=("2", "plain"),
        kills=("r1@step:4:forward,r0@step:12:reduce",),
    ),
    Row(
        name="pictures-seeded",
        script="pictures.py",
        arguments=("2", "documented"),
        kills=("r1@step:4:forward,r0@step:12:reduce",),
    ),
    Row(
        name="pictures-seeded-by-rank",
        script="pictures.py",
        arguments=("2", "by-rank"),
        kills=("r1@step:4:forward",),
    ),
)
CONTRASTIVE = tuple(
    Row(
        name=f"contrastive-{way}",
        script="contrastive.py",
        arguments=(way,),
        promise="equal-count",
        why="what the ranks tell each other before the backward",
        kills=("r1@step:3:forward,r0@step:5:vote",) if way == "through" else (),
    )
    for way in ("own", "through", "centre")
)


def clipped(kind: str, way: str, kill: str = "", **more: Any) -> Row:
    """A row of `hand_clipped.py`."""
    return Row(
        name=f"clipped-{kind}-{way}",
        script="hand_clipped.py",
        arguments=(kind, way),
        ranks=3 if kind == "ddp" else 4,
        kills=(kill,) if kill else (),
        **more,
    )


CLIPPED = (
    clipped("ddp", "values", "r1@step:3:forward,r0@step:5:reduce"),
    clipped("ddp", "norms"),
    clipped("ddp", "loosely"),
    clipped("ddp", "each", "r1@step:3:forward,r0@step:6:vote"),
    clipped("ddp", "no-grad", "r1@step:3:forward,r0@step:5:reduce"),
    clipped("ddp", "inference"),
    clipped("ddp", "between", "r1@step:3:forward"),
    clipped("hsdp", "values"),
    clipped("hsdp", "loosely", "r3@step:3:forward"),
    clipped("hsdp", "each"),
    clipped("hsdp", "no-grad", "r1@step:2:reduce"),
)


def stateful(kind: str, workers: int, *options: str, **more: Any) -> Row:
    """A row of `stateful.py`."""
    name = "-".join([kind, *(["workers"] if workers else []), *(one[2:] for one in options)])
    return Row(
        name=f"stateful-{name}",
        script="stateful.py",
        arguments=(kind, str(workers), *options),
        needs="" if kind == "tokens" else "torchdata",
        **more,
    )


STREAMS = (
    stateful("tokens", 0, kills=("r1@step:3:forward,r2@step:8:reduce",)),
    stateful("tokens", 0, "--again", taken_back="goes on from pass to pass"),
    stateful("rows", 0),
    stateful("sampler", 0, kills=("r0@step:3:forward,r2@step:8:reduce",)),
    stateful("stream", 0),
    stateful("rows", 2),
    stateful("stream", 2),
    stateful("rows", 0, "--resume"),
    stateful("sampler", 0, "--resume"),
    stateful("stream", 0, "--resume"),
    Row(name="stream", script="streams.py", arguments=("own", "0")),
    Row(
        name="stream-workers",
        script="streams.py",
        arguments=("own", "2"),
        kills=("r1@step:3:forward,r2@step:6:reduce",),
    ),
    Row(name="datasets", script="streams.py", arguments=("datasets", "0"), needs="datasets"),
    Row(
        name="datasets-workers",
        script="streams.py",
        arguments=("datasets", "2"),
        needs="datasets",
    ),
)

ROWS = (
    *DDP,
    *SHAPES,
    *OWN_STREAMS,
    *HSDP,
    *BY_HAND,
    *RECIPES,
    *CLIPPED,
    *CONTRASTIVE,
    *METERED,
    *STREAMS,
    *FSDP2,
    *MESHES,
    *FSDP1,
    *ONE_REPLICA,
    *FRAMEWORKS,
)
