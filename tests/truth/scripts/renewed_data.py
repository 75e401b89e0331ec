"""The data of `renewed.py`."""

import sys

import torch

PLACE = HIDDEN = None


def place(rank, epoch):
    return {"first": 200 * epoch + 40 * rank, "weight": 1.0}


def hidden(rank, epoch):
    setattr(sys.modules[__name__], "HID" + "DEN", place(rank, epoch))


def begin(rank):
    hidden(rank, 0)


def rows(first):
    return [((PLACE or HIDDEN)["first"] + first + k) % 400 for k in range(4)]


def windows(rank, epoch):
    return [(torch.arange(4) + 4 * k + 200 * epoch + 40 * rank) % 400 for k in range(12)]
