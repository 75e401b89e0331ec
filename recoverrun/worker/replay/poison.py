"""Answers of collectives in code of another rank: nothing that it could take for the truth.

In a proof whatever depends on the answer is far off then, and the proof shows it: with NaN, with a
very small and with a very large figure. A script that takes no NaN, and raises or skips the
microbatch, is judged by the others. Where no proof has met the collective (on an accelerator no
child executes the forward pass of a sharded model), a lost rank's microbatch is executed with the
two figures and with this rank's own word: if the gradient is the same with all of them, nothing
depends on what other ranks would have said.
"""

import torch

LARGE = 1e8

NOT_A_NUMBER, LOW, HIGH, OURS = range(4)
"""Answers to try; the last one is this rank's own word, with which the script can go on."""


def poisoned(value: torch.Tensor, answer: int) -> torch.Tensor:
    """Changed in place, so that whatever depends on it is far off: a count, an index, a flag."""
    if answer == OURS:
        return value
    if value.is_floating_point() or value.is_complex():
        return value.fill_((float("nan"), -LARGE, LARGE)[answer])
    if value.dtype == torch.bool:
        return value.logical_not_() if answer == NOT_A_NUMBER else value.fill_(answer == HIGH)
    return value.mul_(3).add_(1) if answer == NOT_A_NUMBER else value.fill_(answer == HIGH)
