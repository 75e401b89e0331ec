"""A factor of gradients that goes on with each update, counted in a module of its own, and averages
of them, which are attributes of the parameters.
"""

import torch

updates = 0


def fade(params):
    global updates
    updates += 1
    for param in params:
        param.grad.mul_(1 / (1 + 0.05 * updates))
        if not hasattr(param, "average"):
            param.average = torch.zeros_like(param.grad)
        param.average.mul_(0.9).add_(param.grad, alpha=0.1)
        param.grad.add_(param.average)
