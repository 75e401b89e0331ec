"""Scripts in which ranks hold values apart, and what must come of each today."""

from tests.truth.case import Case, case

LOGGED = (
    case("B3-figures", "figures.py", "r1@step:6:forward", ranks=3, contract="steered"),
    case("B3-meters", "meters.py", "r1@step:3:forward", "r2@step:6:vote", ranks=3),
    case(
        "B3-logs",
        "logged.py",
        "r2@step:4:forward",
        "r1@step:6:reduce",
        ranks=4,
        shards=2,
        contract="steered",
    ),
    case(
        "B3-weighs",
        "logged.py",
        "r2@step:4:forward",
        ranks=4,
        shards=2,
        contract="told",
        told="what the ranks tell each other before the backward",
    ),
)
PARTING = (
    case("T2-hook", "parting.py", "r1@step:3:forward"),
    case("T2-contextvar", "parting.py", "r1@step:4:forward"),
    case("T2-attribute", "parting.py", "r1@step:9:forward"),
    case("T2-made", "parting.py", "r1@step:4:forward"),
    case("T2-named", "parting.py", "r1@step:9:forward", contract="told", told="criterion.average"),
    case("T2-streak", "parting.py", "r1@step:8:forward", contract="told", told="streak differs"),
    case("T2-history", "parting.py", "r1@step:76:forward", contract="told", told="history"),
    case("T2-sampler", "parting.py", "r1@step:4:forward", contract="told"),
    case(
        "T2-turns",
        "turns.py",
        "r1@step:8:forward",
        arguments=(),
        ranks=3,
        contract="told",
        told="crew.role differs between ranks",
    ),
)
WEIGHTS = (
    case(
        "T2-bypassed",
        "training_alone.py",
        "r1@step:3:forward",
        contract="told",
        told="with gradients that torch had not reduced",
    ),
    case(
        "T2-noise",
        "training_alone.py",
        "r1@step:8:forward",
        contract="told",
        told="with different parameters",
    ),
    Case(name="T2-domains", script="domains.py", ranks=4, shards=2, kills=("r3@step:4:forward",)),
)
GIVEN = tuple(
    Case(
        name=f"T2-given-{where}",
        script="given.py",
        arguments=(where,),
        kills=("r1@step:4:forward", "r1@step:7:between"),
        contract=contract,
        told=told,
        sample=where in ("keyword", "thread", "accumulate"),
    )
    for where, contract, told in (
        ("keyword", "exact", ""),
        ("position", "exact", ""),
        ("default", "exact", ""),
        ("variable", "exact", ""),
        ("thread", "exact", ""),
        ("module", "exact", ""),
        ("chain", "exact", ""),
        ("settings", "exact", ""),
        ("environment", "exact", ""),
        ("loss", "exact", ""),
        ("accumulate", "told", "was not asked for any before the last proof"),
        ("generator", "told", "was asked for its first item after the last proof"),
    )
)
STEERED = tuple(
    case(
        f"B3-{way}",
        "plateau.py",
        "r1@step:4:forward",
        ranks=3,
        contract="told",
        told="is over 2 of 3 ranks",
    )
    for way in ("rate", "skip")
)
# The first in the first epoch, before anybody has seen another one; the last across the next.
SHARES = tuple(
    case(
        f"B5-share-{way}",
        "shares.py",
        "r1@step:2:forward",
        "r0@step:8:vote",
        arguments=(way,),
        sample=way in ("torch", "function"),
    )
    for way in ("torch", "numpy", "list", "function", "pieces")
)
# Lost in the first epoch: nobody has told of the data set of a later one.
RENEWED = tuple(
    case(
        f"B5-files-{way}",
        "files.py",
        "r1@step:3:forward",
        arguments=(way,),
        contract=contract,
        told=told,
        sample=way in ("same", "turned"),
    )
    for way, contract, told in (
        ("same", "exact", ""),
        ("workers", "exact", ""),
        ("turned", "told", "the data set Lines was made anew with another names"),
        ("harder", "told", "Harder was read after the last proof"),
        ("rows", "told", "Rows was read after the last proof"),
    )
)
# Survivors that make up unequally many microbatches have as many items as before.
CUTS = (
    case("B7-drawn", "cuts.py", "r1@step:4:forward", "r0@step:10:vote", ranks=3),
    case("B7-blocks", "cuts.py", "r1@step:4:forward", ranks=3, contract="told"),
)
CONSTANTS = (Case(name="B4", script="constant.py", kills=("r1@step:4:forward",), ranks=3),)
APART = (
    *LOGGED,
    *PARTING,
    *WEIGHTS,
    *GIVEN,
    *STEERED,
    *SHARES,
    *RENEWED,
    *CUTS,
    *CONSTANTS,
)
