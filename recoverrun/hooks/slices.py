"""One batch a step, trained on in slices: the step's whole loop over them is one microbatch.

    for batch in loader:
        for part in batch.chunk(4):
            loss_of(part).backward()
        optimizer.step()

A lost rank's is executed again from the top of the outer iteration to where the script turns to its
gradients, however many slices its batch has.
"""

from typing import TYPE_CHECKING

from recoverrun.hooks import exact
from recoverrun.hooks.runtime import Refused, Shape, Unwind

if TYPE_CHECKING:
    from recoverrun.hooks.impersonate import Impersonator
    from recoverrun.hooks.session import Session


def join(session: "Session", shape: Shape) -> None:
    """At the first commit point: what had been taken for microbatches is one. Raises Refused."""
    if session.env.exact:
        exact.refuse(session, f"a batch is trained on in slices at {shape.region.id}")
    if why := session.tallies.reading.join(shape.slices):
        raise Refused(f"a batch is trained on in slices at {shape.region.id}, and {why}")
    session.tallies.reading.found()  # before that, the script may have been shown reduced gradients
    session.first_microbatch()


def committing(session: "Session") -> None:
    """The script turns to its gradients. Raises `Unwind` where it is executed again."""
    actor, shape = session.impersonator, session.runtime.shape
    if session.acting and shape is not None and shape.slices and actor.backwards_seen:
        actor.backwards_seen = max(actor.backwards_seen, shape.backwards)
        raise Unwind("commit")


def skips(session: "Session") -> bool:
    """Does this backward only stand for a slice that is over? A replay wants no gradients."""
    actor, runtime = session.impersonator, session.runtime
    sliced = runtime.shape is not None and runtime.shape.slices
    if not sliced or not actor.replaying or runtime.spoiled:
        return False
    actor.backwards_seen += 1
    return True


def is_over(actor: "Impersonator") -> bool:
    """Does what ranks tell each other no longer bear on the gradient?

    Between slices they would have told each other something in the rehearsal, too.
    """
    shape = actor.runtime.shape
    sliced = shape is not None and shape.slices and actor.rehearsing
    return actor.backwards_seen >= (shape.backwards if shape is not None and sliced else 1)
