"""Scripts that once went wrong without a word, and what must come of each today."""

from tests.truth.apart import APART
from tests.truth.case import Case, case


def _either(*models: tuple[str, str]) -> tuple[Case, ...]:
    """Scripts that are made up exactly, or told."""
    return tuple(
        Case(name=f"C4-{name}", script=script, kills=("r1@step:5:forward",), contract="either")
        for name, script in models
    )


GRADIENTS = (
    case("A1-clip", "adaptive.py", "r1@step:7:forward"),
    case("A1-rate", "adaptive.py", "r0@step:3:reduce"),
    case("A1-logs", "adaptive.py"),
    # Replicas that went apart cannot be made up: what a lost one had by itself is gone.
    Case(name="A2", script="local_sgd.py", kills=("r1@step:3:forward",), ranks=3, contract="told"),
)
BLOCKS = (
    case("D1-no_sync", "blocks.py", "r1@step:4:forward"),
    case("D1-autocast", "blocks.py", "r0@step:5:reduce"),
    case("D2", "unequal_passes.py", "r1@step:3:forward", ranks=3, contract="told"),
    case("D3-inside", "modes.py", "r1@step:4:forward", contract="either"),
    case("D3-around", "modes.py", "r1@step:4:forward", contract="either"),
    # What is done on the way out of a microbatch that is executed again is not the rank's.
    case("D5", "leaving.py", "r1@step:4:forward", "r0@step:6:reduce"),
    *(case(f"D4-{when}", "late_hook.py") for when in ("forward", "backward", "between")),
)
PLACES = tuple(
    case(
        f"A3-{way}",
        "places.py",
        "r1@step:4:forward",
        contract="either",
        sample=way in ("closure", "file"),
    )
    for way in (
        "closure",
        "attribute",
        "count",
        "slots",
        "queue",
        "thread",
        "file",
        "pipe",
        "database",
    )
)
STARTS = (
    # What a signal's handler raised in our wait left the reduction half done.
    case("A11", "alarmed.py"),
    # What a handler wrote while code was executed for another rank was that rank's, and lost.
    case("A12", "stopped.py", "r1@step:3:forward"),
    Case(name="A4", script="arguments_first.py", needs="transformers"),
    case("A6-always", "budget.py"),
)
# Survivors that took items for what they made up left their loops before the others.
TAKEN = tuple(
    case(f"A10-{way}", "taken.py", "r1@step:3:forward", ranks=3, contract="either")
    for way in ("own", "file", "queue")
)
# What was read ahead was made of the same rows again and again, and never ended.
ENDS = (
    Case(
        name="A10-batches", script="in_batches.py", kills=("r1@step:3:forward",), contract="either"
    ),
)
STREAMS = (
    case("B1-layers", "chance.py", "r1@step:3:forward", "r0@step:4:vote", ranks=3),
    case("B1-images", "chance.py", "r1@step:3:forward,r2@step:6:reduce", ranks=3),
    case("B2-closure", "hidden.py", "r1@step:7:forward", "r0@step:3:reduce", ranks=3),
    case("B2-dict", "hidden.py", "r1@step:7:forward", ranks=3),
    case("B2-list", "hidden.py", "r2@step:3:vote", ranks=3),
    case("B2", "metered.py", "r1@step:3:forward", "r0@step:8:vote"),
    case("B5-torch", "made_anew.py", "r0@step:4:vote,r1@step:9:forward", ranks=3),
    case("B5-numpy", "made_anew.py", "r1@step:7:forward"),
    case("B5-python", "made_anew.py", "r0@step:7:forward"),
    case("B8-files", "streamed.py", "r1@step:3:forward"),
    Case(
        name="B8-rows",
        script="streamed.py",
        arguments=("rows",),
        kills=("r1@step:3:forward",),
        contract="told",
        told="holds other data in Lines.rows",
        sample=False,
    ),
    case("B7-asked", "own_batches.py", "r1@step:5:forward", ranks=3, sample=False),
    case("B7-ahead", "own_batches.py", "r1@step:5:forward", "r0@step:3:vote"),
    *(case(f"B9-{way}", "called_anew.py", "r1@step:2:forward") for way in ("seeds", "later")),
    *(
        case(f"B9-{way}", "called_anew.py", "r1@step:2:forward", contract="told", told="anew")
        for way in ("called", "shares")
    ),
    case("B10-alike", "turning_shares.py", "r1@step:3:forward", "r0@step:4:vote"),
    *(
        case(f"B10-{way}", "turning_shares.py", kill, ranks=ranks, contract="told", told=told)
        for way, kill, ranks, told in (
            ("variable", "r1@step:3:forward", 3, "<lambda> of a loader"),
            ("files", "r0@step:4:vote", 2, "of a loader"),
            ("rests", "r1@step:3:forward", 2, "of a loader"),
            ("later", "r1@step:3:forward", 2, "of a loader"),
            ("begins", "r1@step:3:forward", 2, "with another others"),
        )
    ),
    *(
        case(f"B12-{way}", "cached.py", "r1@step:6:forward", contract="told", told="same inputs")
        for way in ("calls", "elsewhere", "files")
    ),
    case("B12", "kept_batches.py", "r1@step:6:forward", contract="told", told="same inputs"),
    case("B12-alike", "cached.py", "r1@step:6:forward", "r0@step:4:vote"),
    case("B13-torch", "augmented_once.py", "r1@step:6:forward", "r0@step:13:forward"),
    case("B13-python", "augmented_once.py", "r1@step:6:forward", sample=False),
    *(
        case(f"B14-{way}", "gathered.py", "r1@step:30:forward", contract="told", told="list(")
        for way in ("dict", "nested")
    ),
    *(
        case(f"B15-{kill[:2]}", "mask_file.py", kill, contract="told", told="the one before")
        for kill in ("r1@step:4:forward", "r0@step:7:reduce")
    ),
    *(
        case(
            f"B17-{way}", "own_results.py", "r1@step:3:forward", contract="told", told="for itself"
        )
        for way in ("epochs", "rows", "chance", "level")
    ),
    case("B16-first", "recent.py", "r1@step:4:forward"),
    case("B16-second", "recent.py", "r0@step:9:reduce", sample=False),
    case("B6-torch", "anew_each_epoch.py", "r1@step:3:forward"),
    case("B6-numpy", "anew_each_epoch.py", "r0@step:3:forward", sample=False),
    case("B6-python", "anew_each_epoch.py", "r0@step:3:vote", sample=False),
    case(
        "B6-late",
        "anew_each_epoch.py",
        "r1@step:3:forward",
        contract="told",
        told="where is unknown",
    ),
)
# The script asks a sampler, and no loader, which rows are a rank's.
GONE_OVER = (
    *(
        case(f"B11-{way}", "gone_over.py", "r1@step:3:forward,r0@step:8:vote", ranks=3)
        for way in ("batches", "split", "single", "slices")
    ),
    case(
        "B11-turns",
        "gone_over.py",
        "r1@step:3:forward",
        ranks=3,
        contract="told",
        told="sampler.rank differs between ranks and moves",
    ),
)
RENEWED = (
    case("B4-dict", "renewed.py", "r1@step:5:forward"),
    case("B4-hidden", "renewed.py", "r1@step:5:forward", contract="told", told="HIDDEN"),
    case("B4-class", "renewed.py", "r1@step:5:forward", contract="told", told="windows"),
)
BETWEEN = (
    *(
        case(f"B5-{way}", "between.py", "r1@step:8:forward", ranks=3, contract="told", told=told)
        for way, told in (
            ("numbers", "draw unequally many random numbers of torch"),
            ("value", ""),
        )
    ),
)
UNSEEN = (
    case(
        "T2-all",
        "unseen.py",
        "r1@step:9:between",
        ranks=3,
        contract="told",
        told="which it had committed, had other inputs",
    ),
    case(
        "T2-one",
        "unseen.py",
        "r1@step:9:between",
        ranks=3,
        contract="told",
        told="executed by ranks 0 and 2, had other inputs",
    ),
)
ALONE = (
    Case(
        name="B1-alone",
        script="evaluated.py",
        kills=("r1@step:9:forward", "r0@step:8:reduce"),
    ),
)
LATE = tuple(
    Case(
        name=f"T2-late-{ranks}",
        script="late.py",
        kills=("r1@step:5:between",),
        ranks=ranks,
        contract="told",
        told="own microbatch of step 6, executed once more by itself, had another loss",
    )
    for ranks in (2, 3)
)
BEHIND = tuple(
    case(
        f"T2-{way}",
        "behind.py",
        "r2@step:4:forward",
        "r1@step:6:vote",
        ranks=4,
        shards=2,
        contract="exact" if way in ("dict", "deques") else "told",
        sample=way in ("deques", "context"),
    )
    for way in ("dict", "deques", "buffer", "context")
)
# No loop names what it calls: it comes out of a table, by its name, or is an event's.
NAMED = tuple(
    case(f"A9-{way}", "named.py", kill)
    for way, kill in (("table", "r1@step:5:forward"), ("name", "r0@step:3:reduce"))
)
KEPT = *(("in_place", way) for way in ("dict", "tensor", "list", "member")), ("cells", "forward")
MODULES = (
    *(
        case(f"B4-{way}", "modular.py", "r1@step:5:forward", "r0@step:8:vote")
        for way in ("counter", "stream", "config", "averages")
    ),
    *(
        case(f"B4-{script}-{way}", f"{script}.py", "r1@step:5:forward", arguments=(way,))
        for script, way in KEPT
    ),
    # An iterator over a rank's own list, in a variable and in an object.
    case("B4-iterator", "modular.py", "r1@step:5:forward", contract="told"),
    case("B4-held", "modular.py", "r1@step:5:forward", contract="told"),
)
# What is false for a proof must not be, to a script that takes only finite losses.
FINITE = tuple(
    case(
        f"B6-finite-{way}",
        "finite.py",
        "r1@step:2:forward",
        "r0@step:8:vote",
        arguments=(way,),
        contract="steered",
        sample=way == "end",
    )
    for way in ("end", "skip", "after")
)
SHAPES = (
    Case(
        name="C1",
        script="unfreezing.py",
        kills=("r1@step:3:forward", "r1@step:10:reduce"),
        ranks=3,
    ),
    Case(
        name="C2",
        script="epoch_ends.py",
        kills=("r1@step:3:forward", "r0@step:5:reduce", "r1@step:2:vote"),
        ranks=3,
    ),
    # Ranks find in different steps that there is something to prove: they hung.
    Case(name="C5", script="uneven.py", kills=("r1@step:7:forward",), ranks=3, contract="either"),
)
MODELS = (
    Case(
        name="C4-sharpness",
        script="sharpness.py",
        kills=("r1@step:5:forward", "r0@step:4:reduce", "r1@step:7:between"),
    ),
    Case(
        name="C4-critic",
        script="critic.py",
        kills=("r1@step:4:forward", "r0@step:8:reduce"),
        ranks=3,
    ),
    # The old iterator was asked for its end once more, and drew a seed then.
    Case(name="C4-critic-epochs", script="critic_epochs.py", kills=("r1@step:4:forward",)),
    # Executed again, the code made the survivors' model deeper once more.
    Case(
        name="C4-deeper",
        script="deeper.py",
        kills=("r1@step:3:forward",),
        contract="told",
        told="other submodules or parameters",
    ),
    # A child that is alone waited for the other shards before it came to the model.
    Case(
        name="C4-target",
        script="target.py",
        ranks=4,
        shards=2,
        kills=("r3@step:4:forward", "r0@step:7:reduce"),
    ),
    *_either(
        ("adversaries", "adversaries.py"),
        ("rate-range", "rate_range.py"),
        ("tokenizing", "tokenizing.py"),
    ),
)
CASES = (
    *GRADIENTS,
    *BLOCKS,
    *PLACES,
    *TAKEN,
    *ENDS,
    *STARTS,
    *STREAMS,
    *GONE_OVER,
    *RENEWED,
    *BETWEEN,
    *UNSEEN,
    *ALONE,
    *LATE,
    *BEHIND,
    *NAMED,
    *FINITE,
    *MODULES,
    *SHAPES,
    *MODELS,
    *APART,
)
