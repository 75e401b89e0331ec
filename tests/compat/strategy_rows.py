"""Rows of ways to reduce gradients: DDP, FSDP, meshes, by hand, and frameworks that do it."""

from typing import Any

from tests.compat.row import Row, going_back


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


UNCLEAN = "the script reduces its gradients by hand, but gradients are "


def by_hand(feature: str, **more: Any) -> Row:
    """A row of `by_hand.py`."""
    return Row(name=f"by-hand-{feature}", script="by_hand.py", arguments=(feature,), **more)


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
        promise="equal-count",  # but for the first of the minibatches of a rollout
        why="was made with the weights of an earlier step",
        returns_at="reduce",  # its agent is no module that is called
        kills=("r1@step:4:reduce,r0@step:12:vote",),
    ),
    going_back(by_hand("every"), why=f"{UNCLEAN}reduced more than once"),
    going_back(by_hand("clip"), why=f"{UNCLEAN}clipped or scaled before they"),
    going_back(by_hand("clamp-late"), why=f"{UNCLEAN}changed before they are reduced"),
    going_back(by_hand("weighted"), why="by other factors on other ranks"),
    going_back(by_hand("apart"), why="what is reduced is not copied back to them"),
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


FSDP1 = (
    fsdp1("hybrid"),
    fsdp1("zero2"),
    fsdp1("orig-params"),
    fsdp1("no-sync", "r0@step:4:vote"),
    fsdp1("bf16", apart=1e-3),  # what half precision rounds away
    fsdp1("groups"),
    going_back(fsdp1("full-shard"), why="FSDP1 with FULL_SHARD is not served"),
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


FSDP2 = (
    fsdp2("keep"),
    fsdp2("bf16", apart=1e-3),
    fsdp2("offload"),
    fsdp2("ignored"),
    fsdp2("tp-ddp"),
    fsdp2("replicate"),
    going_back(fsdp2("unlike"), why="without a replicate dimension"),
    going_back(fsdp2("in-backward"), why="uses gradients within the backward"),
    going_back(fsdp2("tp-sharded"), why="fully_shard without a replicate dimension"),
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


ONE_REPLICA = (
    going_back(DDP[0], name="ddp-plain-alone", ranks=1, why="the script has one replica"),
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
