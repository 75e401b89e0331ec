"""Words for how a microbatch that is executed as another rank differs from that rank's own."""

TRACE = (
    "executing a microbatch at {} once more moves something of the script that cannot be put back: "
    "a lost rank's could not be made up without taking data of this rank's own"
)
WRITES = (
    "the script's changes of parameters between the top of the loop at {} and the backward cannot "
    "be put back"
)
OTHER_END = "{} had other values at its end"
GRADIENT = "its gradient was another one"

DATA, NUMBERS = "other data entered the model", "it drew other random numbers"
LOSS = "its loss was another one"

CAUSES = {
    DATA: "its data come from a source that cannot be replayed",
    NUMBERS: "its random numbers come from a source that cannot be replayed",
    LOSS: (
        "its data and random numbers are right, and what else its forward reads, such as a value "
        "that a module or an object keeps, is that rank's or was made with the weights of an "
        "earlier step"
    ),
    GRADIENT: "what only its backward reads, such as a number that a module holds, is that rank's",
}
"""The likely cause of each difference."""

MOVED = "it moves them by something that is that rank's, and cannot be replayed"
