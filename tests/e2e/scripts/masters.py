"""Master copies of the parameters, which an optimizer trains in their place."""

from collections.abc import Iterable

import torch


class Masters:
    def __init__(self, params: Iterable[torch.nn.Parameter]) -> None:
        self._params = list(params)
        self.copies = [one.detach().clone().requires_grad_() for one in self._params]

    def take_gradients(self) -> None:
        for one, copy in zip(self._params, self.copies, strict=True):
            copy.grad = one.grad

    def give_back(self) -> None:
        with torch.no_grad():
            for one, copy in zip(self._params, self.copies, strict=True):
                one.copy_(copy)
                one.grad = None
