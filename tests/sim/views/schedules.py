"""Directed schedules: faults in an order that random histories seldom have.

Each leads to a corner where one rule of the register alone holds (`mutants`). They are made for the
shorter silences of `hasty`.
"""

from collections.abc import Iterator

from tests.sim.views.plan import Fault, Plan


def asleep(again: float = 0.0) -> Iterator[Plan]:
    """The leader of two stands still, behind a broken link; awake, it asks the witness too late.

    `again`: by then another witness is there, so many seconds after the first one died.
    """
    for number in range(30):
        faults = [
            Fault(kind="cut", at_s=5.0, targets=(0,), for_s=12.0, what="launchers"),
            Fault(kind="pause", at_s=5.0, targets=(0,), for_s=4.0 + 0.1 * number),
            # The witness knows what it has said itself, and not what came of that.
            Fault(kind="drop", at_s=5.0, targets=(1,), what="NewConfiguration", count=500),
        ]
        if again:
            at_s = 8.5 + 0.1 * number
            faults.append(Fault(kind="crash", at_s=at_s, targets=(2,), back_s=again))
        yield Plan(
            seed=number, nodes=2, rates=(1.0, 1.0), chaos_s=18.0, data_apart=True, witness=True,
            faults=tuple(faults),
        )  # fmt: skip


def reborn() -> Iterator[Plan]:
    yield from asleep(again=0.3)


def unheard() -> Iterator[Plan]:
    """A configuration is decided and its leader never hears that: the votes are lost."""
    for place in (1, 2):
        yield Plan(
            seed=place, nodes=4, rates=(1.0,) * 4, chaos_s=12.0, data_apart=True,
            faults=(
                Fault(kind="drop", at_s=4.0, targets=(1, 2), what="Accepted", count=50),
                Fault(kind="cut", at_s=5.0, targets=(3,), for_s=6.0),
            ),
        )  # fmt: skip


def forgotten() -> Iterator[Plan]:
    """Two configurations are decided; the voters hear nothing but the requests to accept them."""
    for number in range(20):
        yield Plan(
            seed=number, nodes=4, rates=(1.0,) * 4, chaos_s=14.0,
            faults=(
                Fault(kind="drop", at_s=3.5, targets=(0,), what="NewConfiguration", count=500),
                Fault(kind="crash", at_s=4.0, targets=(3,), back_s=2.5),
                Fault(kind="crash", at_s=6.7 + 0.05 * number, targets=(0,), proved=True),
            ),
        )  # fmt: skip


def ahead() -> Iterator[Plan]:
    """A launcher that is left out has finished a step that the others have not, and soon comes
    back.
    """
    for number in range(150):
        yield Plan(
            seed=number, nodes=3, rates=(1.0,) * 3, work_s=0.8, chaos_s=12.0, data_apart=True,
            faults=(Fault(kind="cut", at_s=5.0, targets=(2,), for_s=3.0 + 0.02 * number),),
        )  # fmt: skip


def forlorn() -> Iterator[Plan]:
    """One of four is left out behind a broken link; when that is mended, all others die at once."""
    for number in range(20):
        yield Plan(
            seed=number, nodes=4, rates=(1.0,) * 4, chaos_s=10.0, data_apart=True,
            faults=(
                Fault(kind="cut", at_s=5.0, targets=(3,), for_s=3.0 + 0.1 * number),
                Fault(kind="crash", at_s=7.999 + 0.1 * number, targets=(0, 1, 2), proved=True),
            ),
        )  # fmt: skip


def bereft() -> Iterator[Plan]:
    """The same with two of five, which still hear each other."""
    for number in range(20):
        yield Plan(
            seed=number, nodes=5, rates=(1.0,) * 5, chaos_s=10.0, data_apart=True,
            faults=(
                Fault(kind="cut", at_s=5.0, targets=(3, 4), for_s=3.0 + 0.1 * number),
                Fault(kind="crash", at_s=7.999 + 0.1 * number, targets=(0, 1, 2), proved=True),
            ),
        )  # fmt: skip


def severed() -> Iterator[Plan]:
    """Of five three die, and the link between the two that are left breaks."""
    for number in range(20):
        yield Plan(
            seed=number, nodes=5, rates=(1.0,) * 5, chaos_s=10.0, data_apart=True,
            faults=(
                Fault(kind="pause", at_s=4.9, targets=(3,), for_s=0.5),
                Fault(kind="crash", at_s=5.0 + 0.01 * number, targets=(0, 1, 2), proved=True),
                Fault(kind="cut", at_s=5.35, targets=(3,), for_s=4.0),
            ),
        )  # fmt: skip


def impatient() -> Iterator[Plan]:
    """A voter has not heard the leader for a while, as that is cut off from all: it stands soon."""
    for number in range(20):
        yield Plan(
            seed=number, nodes=3, rates=(1.0,) * 3, chaos_s=18.0, data_apart=True,
            faults=(
                Fault(kind="cut", at_s=5.0 + 0.02 * number, targets=(2,), for_s=1.8),
                Fault(kind="cut", at_s=6.75 + 0.02 * number, targets=(0,), for_s=10.0),
            ),
        )  # fmt: skip


def untold() -> Iterator[Plan]:
    """Three of five let a sixth in, and die before the other two have heard of it."""
    for number in range(20):
        yield Plan(
            seed=number, nodes=6, rates=(1.0,) * 6, chaos_s=10.0,
            faults=(
                Fault(kind="crash", at_s=1.0, targets=(5,), proved=True, back_s=4.05),
                Fault(kind="cut", at_s=5.0, targets=(3, 4), for_s=0.3 + 0.01 * number),
                Fault(kind="crash", at_s=5.299 + 0.01 * number, targets=(0, 1, 2), proved=True),
            ),
        )  # fmt: skip


def unasked() -> Iterator[Plan]:
    """Two of five decide twice; the others know of neither, and one of the two of the first only.

    The fifth is left out; then the first two, behind a broken link, leave out the rest.
    """
    for number in range(20):
        yield Plan(
            seed=number, nodes=5, rates=(1.0,) * 5, chaos_s=18.0, data_apart=True,
            faults=(
                Fault(kind="drop", at_s=4.8, targets=(0,), what="NewConfiguration", count=500),
                Fault(kind="oneway", at_s=4.9, targets=(4,), for_s=2.6),
                Fault(kind="cut", at_s=7.6, targets=(0, 1), for_s=5.2 + 0.05 * number),
                Fault(kind="crash", at_s=10.3, targets=(0,)),
            ),
        )  # fmt: skip


SCHEDULES = {
    "unheard": unheard, "forgotten": forgotten, "ahead": ahead,
    "asleep": asleep, "reborn": reborn, "forlorn": forlorn, "bereft": bereft,
    "severed": severed, "untold": untold, "unasked": unasked,
    "impatient": impatient,
}  # fmt: skip
