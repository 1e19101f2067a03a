"""From what a network finds likely to what is done, without drawing: in torch, for use and for export."""

from __future__ import annotations

from collections.abc import Sequence

import torch

IMPOSSIBLE = -1e8
"""Logit of a choice that is ruled out, as sb3-contrib has it."""


def decided(
    logits: Sequence[torch.Tensor], counts: Sequence[bool], quantile: float | None
) -> torch.Tensor:
    """(n, parts) the most probable choice of each part, or a quantile of it.

    Args:
        logits: (n, choices) of each part; of choices that are ruled out so low that they count nothing.
        counts: of which parts the quantile is taken; of the others, the most probable choice.
        quantile: the smallest choice at or below which the network would draw in that share of decisions;
            None: the most probable one of counts too.
    """
    found = []
    for each, is_count in zip(logits, counts, strict=True):
        if is_count and quantile is not None:
            upto = torch.cumsum(torch.softmax(each.double(), dim=1), dim=1)
            found.append((upto < quantile * upto[:, -1:]).sum(dim=1))
        else:
            found.append(each.argmax(dim=1))
    return torch.stack(found, dim=1)
