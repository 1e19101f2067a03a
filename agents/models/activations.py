"""An activation that a whole layer cannot leave the useful range of."""

from __future__ import annotations

import torch
from torch import nn


class NormTanh(nn.Module):
    """tanh of a layer's outputs, which are brought to mean 0 and variance 1 over the layer first.

    Where nearly all states want the same (a fleet at about the right size), every gradient says the same to
    all units, and Adam, whose steps do not get smaller with the gradient, drives them to where tanh is flat
    within a few updates: then nothing that is seen matters any more. Relative to the others of its layer
    (layer normalisation without parameters: Ba et al. 2016) a unit cannot go there along with them all.
    """

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """(n, units) in [-1, 1]."""
        return torch.tanh(nn.functional.layer_norm(values, values.shape[-1:]))
