"""QLM's workload W_C: some requests of a trace are mega prompts.

"To generate the mega prompt workload, we randomly select requests with total input and output tokens in
the 3K-4K range" (section 8): from the multi-turn ShareGPT table, since single turns end at 2,048 tokens.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from llmscale_env.workload import tables
from llmscale_env.workload.requests import RequestTable

LENGTHS = "sharegpt"
LEAST, MOST = 3000, 4000
"""Tokens of input and output together."""


def mega_lengths(
    n: int, rng: np.random.Generator, least: int = LEAST, most: int = MOST
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Input and output tokens of `n` mega prompts."""
    table = tables.load_lengths(LENGTHS)
    parts: list[NDArray[np.int32]] = []
    found = 0
    while found < n:
        pair = np.stack([tables.round_tokens(x, most) for x in table.sample(8 * n + 100, rng)])
        good = pair[:, (pair.sum(axis=0) >= least) & (pair.sum(axis=0) <= most)]
        parts.append(good)
        found += good.shape[1]
    inputs, outputs = np.concatenate(parts, axis=1)[:, :n]
    return inputs, outputs


def with_mega_prompts(
    requests: RequestTable, seed: int, share: float, least: int = LEAST, most: int = MOST
) -> tuple[RequestTable, NDArray[np.bool_]]:
    """The same requests, of which a random share have the lengths of mega prompts.

    With the same seed a larger share has the mega prompts of a smaller one, and more.

    Returns:
        The requests, and (n,) which of them are mega prompts.

    Raises:
        ValueError: a share outside 0..1.
    """
    if not 0 <= share <= 1:
        raise ValueError(f"share = {share}: must be in 0..1")
    rng = np.random.default_rng([seed, 16])
    n = len(requests)
    mega = np.zeros(n, np.bool_)
    mega[rng.permutation(n)[: round(share * n)]] = True
    inputs, outputs = mega_lengths(n, rng, least, most)
    mean = np.int32(round(float(outputs.mean())))
    changed = replace(
        requests,
        input_tokens=np.where(mega, inputs, requests.input_tokens),
        output_tokens=np.where(mega, outputs, requests.output_tokens),
        predicted_output_tokens=np.where(mega, mean, requests.predicted_output_tokens),
    )
    return changed, mega


def apart(instance: NDArray[np.int64], mega: NDArray[np.bool_]) -> float | None:
    """How far mega prompts and the others are on different instances: 0, mixed alike, to 1, none shared.

    Half the summed difference of the shares of either kind over the instances; None without either kind.

    Args:
        instance: (n,) which one served each request; -1: none did.
        mega: (n,) which of them are mega prompts.
    """
    served = instance >= 0
    kinds = [np.bincount(instance[served & kind]) for kind in (mega, ~mega)]
    if not all(kind.sum() for kind in kinds):
        return None
    size = max(len(kind) for kind in kinds)
    one, other = (np.pad(kind / kind.sum(), (0, size - len(kind))) for kind in kinds)
    return float(np.abs(one - other).sum()) / 2
