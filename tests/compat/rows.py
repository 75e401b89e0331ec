"""What is tried: one row a script or a feature, and what must come of it."""

from typing import Any

from tests.compat.row import Row


def ddp(feature: str, *kills: str, **more: Any) -> Row:
    """A row of `ddp_variants.py`; `kills` are what `test_compat` tries."""
    return Row(
        name=f"ddp-{feature}", script="ddp_variants.py", arguments=(feature,), kills=kills, **more
    )


DDP = (
    ddp("plain", "r1@step:3:forward,r0@step:5:reduce"),
    ddp("many-buckets"),
    ddp("bucket-view"),
    ddp("static-graph"),
    ddp("unused", "r1@step:2:forward,r0@step:5:reduce"),
    ddp("unused-many-buckets"),
    # DDP's first bucket holds a MiB; all that does not fit in there is in one of 25 MiB.
    ddp("two-buckets", "r1@step:3:forward,r0@step:5:reduce"),
    ddp("unused-two-buckets"),
    ddp("every-microbatch"),
    ddp("replicate"),
    # A layer before a normalization has hardly a gradient along itself: roundings are blown up.
    # Without rank 0, whose running means DDP gives to all, those of another rank are given.
    ddp("batch-norm", "r2@step:3:backward", apart=1e-8, victims=(1, 2)),
    ddp("compiled", "r1@step:3:forward"),
    ddp("scaler", "r0@step:4:reduce"),
    ddp("two-optimizers"),
    ddp("zeroed"),
    ddp("loader-workers", "r0@step:3:reduce"),
    ddp("first-step", "r3@step:0:forward", ranks=4),  # one survivor has nothing to make up
    # The second case ends a step by decision and evaluates at once, before all meet again.
    ddp(
        "evaluating",
        "r2@step:3:reduce,r1@step:6:vote",
        "r1@step:2:forward,r2@step:5:vote",
        ranks=4,
    ),
    ddp("wrapped-late", "r1@step:3:forward"),
    ddp("own-generator", "r0@step:4:reduce"),
    ddp("fp16-hook", apart=1e-3),  # what half precision rounds away
    ddp("cycle"),
    ddp("iterable", "r1@step:3:forward,r2@step:6:reduce"),
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
    Row(
        name="shared-update",
        script="habits.py",
        arguments=("shared-update",),
        promise="unprotected",
        why="Shared exchanges what ranks computed while it updates the parameters",
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
    own("rows-by-chance"),
    own(
        "many-rows-by-chance",
        promise="equal-count",
        why="other rows of its data set, a list of more than 2048",
    ),
)
HSDP = (
    Row(
        name="hsdp-gpt",
        script="../../../templates/gpt_hsdp.py",
        ranks=4,
        apart=1e-4,
        arguments=("--steps=8",),
        kills=("r3@step:3:reduce",),
    ),
)


def fsdp1(feature: str, kill: str = "", **more: Any) -> Row:
    """A row of `fsdp1_variants.py`, in single precision: its `clip_grad_norm_` insists."""
    return Row(
        name=f"fsdp1-{feature}",
        script="fsdp1_variants.py",
        arguments=(feature,),
        ranks=4,
        kills=(kill,) if kill else (),
        **{"apart": 1e-6, **more},
    )


def fsdp2(feature: str, kill: str = "", **more: Any) -> Row:
    """A row of `fsdp2_variants.py`."""
    return Row(
        name=f"fsdp2-{feature}",
        script="fsdp2_variants.py",
        arguments=(feature,),
        ranks=4,
        kills=(kill,) if kill else (),
        **more,
    )


def by_hand(feature: str, **more: Any) -> Row:
    """A row of `by_hand.py`."""
    return Row(name=f"by-hand-{feature}", script="by_hand.py", arguments=(feature,), **more)


UNCLEAN = "the script reduces its gradients by hand, but gradients are "
BY_HAND = (
    by_hand("plain"),
    by_hand("mean"),
    by_hand("accumulate"),
    by_hand("flat", kills=("r1@step:3:reduce,r0@step:6:vote",)),
    by_hand("flat-divided"),
    by_hand("divided"),
    by_hand("buckets"),
    by_hand("unused"),
    Row(
        name="by-hand-rollouts",
        script="rollouts.py",
        promise="equal-count",  # a rank's rollouts are its own, and too large to travel
        why="its loss was another one",
        kills=("r1@step:4:reduce,r0@step:12:forward",),
    ),
    by_hand("every", promise="unprotected", why=f"{UNCLEAN}reduced more than once"),
    by_hand("clip", promise="unprotected", why=f"{UNCLEAN}clipped or scaled before they"),
    by_hand(
        "clamp-late",
        promise="unprotected",
        why=f"{UNCLEAN}changed before they are reduced",
    ),
    by_hand("weighted", promise="unprotected", why="by other factors on other ranks"),
    by_hand(
        "apart",
        promise="unprotected",
        why="what is reduced is not copied back to them",
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
    recipe("ddp", "late", kill="r1@step:3:forward", taken_back="is over 2 of 3 replicas"),
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
FSDP2 = (
    fsdp2("keep"),
    fsdp2("bf16", apart=1e-3),
    fsdp2("offload"),
    fsdp2("ignored"),
    fsdp2("tp-ddp"),
    fsdp2("replicate"),
    fsdp2("unlike", promise="unprotected", why="without a replicate dimension"),
    fsdp2("in-backward", promise="unprotected", why="uses gradients within the backward"),
    fsdp2("tp-sharded", promise="unprotected", why="fully_shard without a replicate dimension"),
)


def meshes(way: str, *kills: str, ranks: int = 4, **more: Any) -> Row:
    """A row of `meshes.py`."""
    return Row(
        name=f"mesh-{way}",
        script="meshes.py",
        arguments=(way,),
        ranks=ranks,
        kills=kills,
        **more,
    )


MESHES = (
    meshes("tp", "r1@step:3:forward"),
    meshes("shard-tp", ranks=8),
    meshes("cp"),
    meshes("pp", "r2@step:3:forward"),
    meshes("pp-sums"),
    meshes("pp-twice", "r2@step:3:forward"),
    meshes("pp-interleaved"),
    meshes("pp-zero-bubble"),
    meshes("pp-tp", ranks=8),
)
FSDP1 = (
    fsdp1("hybrid"),
    fsdp1("zero2"),
    fsdp1("orig-params"),
    fsdp1("no-sync", "r0@step:4:vote"),
    fsdp1("bf16", apart=1e-3),  # what half precision rounds away
    fsdp1("groups"),
    fsdp1("full-shard", promise="unprotected", why="FSDP1 with FULL_SHARD is not served"),
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

FRAMEWORKS = (
    Row(
        name="accelerate",
        script="accelerate_loop.py",
        needs="accelerate",
        kills=("r0@step:2:reduce,r1@step:6:vote",),
    ),
    Row(
        name="accelerate-endless",
        script="accelerate_endless.py",
        needs="accelerate",
        kills=("r2@step:1:forward,r0@step:5:reduce",),
    ),
    Row(
        name="transformers-trainer",
        script="transformers_trainer.py",
        needs="transformers",
        kills=("r1@step:3:reduce,r0@step:6:forward",),
        apart=1e-6,  # single precision
    ),
    Row(
        name="trl-sft",
        script="trl_sft.py",
        needs="trl",
        kills=("r2@step:6:forward",),
        apart=1e-6,
    ),
    Row(
        name="lightning-trainer",
        script="lightning_trainer.py",
        needs="lightning",
        kills=("r1@step:3:reduce,r0@step:5:forward",),
    ),
    Row(
        name="lightning-fabric",
        script="fabric_loop.py",
        needs="lightning",
        kills=("r2@step:4:forward",),
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
    *FRAMEWORKS,
)
