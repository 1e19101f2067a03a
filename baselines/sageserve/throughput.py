"""Tokens per second of an instance, theta of section 5.1, from calibrated iteration times.

Section 3.2 defines it as the throughput at a target latency. Here an instance prefills each prompt alone
and shares its decode iterations among the largest batch that both its KV cache and the target allow, so
a request takes

    prefill(input) + output * decode(batch, batch * context) / batch

seconds of it, with the mean context of the requests. The tokens of all requests over the sum of these
seconds are what it can serve if it never waits: an upper bound (ours; the paper profiles).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from llmscale_env.cluster.iteration_time import iteration_time_model
from llmscale_env.cluster.kv import kv_capacity_tokens

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Throughput:
    """What an instance can serve.

    Attributes:
        batch: requests that decode together.
        busy_s: (n,) seconds of the instance that each request takes.
        prompt_tokens_per_s, tokens_per_s: of all requests; with and without what is generated.
        requests_per_s: of all requests.
        kind: where the iteration times come from ("end-to-end", "composed", "roofline").
    """

    batch: int
    busy_s: Floats
    prompt_tokens_per_s: float
    tokens_per_s: float
    requests_per_s: float
    kind: str


def throughput(
    llm: str,
    gpu: str,
    tp: int,
    input_tokens: ArrayLike,
    output_tokens: ArrayLike,
    *,
    itl_s: float = 0.2,
    max_batch: int = 512,
) -> Throughput:
    """Theta of an LLM on a GPU type for requests of these lengths.

    Args:
        llm, gpu, tp: an instance.
        input_tokens, output_tokens: (n,) of requests as they come.
        itl_s: target for a decode iteration; a batch of one is allowed whatever it takes.
        max_batch: limit of the batch (released code: 512).

    Raises:
        ValueError: no requests, or unequal numbers of them.
        DoesNotFitError: the LLM's weights leave no memory on such an instance.
    """
    inputs, outputs = np.asarray(input_tokens, np.float64), np.asarray(output_tokens, np.float64)
    if inputs.shape != outputs.shape or inputs.ndim != 1 or len(inputs) == 0:
        raise ValueError(
            f"input_tokens, output_tokens: expected (n,) each, got {inputs.shape}, {outputs.shape}"
        )
    model = iteration_time_model(llm, gpu, tp)
    # Over its life a request holds its prompt and, on average, half of its output; who is long stays long.
    context = float(((inputs + outputs / 2) * outputs).sum() / outputs.sum())
    most = int(min(max_batch, kv_capacity_tokens(llm, gpu, tp) // context))
    low, high = 1, max(most, 1)
    while low < high:
        middle = (low + high + 1) // 2
        if model.decode_s(middle, middle * context) <= itl_s:
            low = middle
        else:
            high = middle - 1
    per_token = model.decode_s(low, low * context) / low
    prefill = np.array([model.prefill_s(tokens) for tokens in inputs])
    busy = prefill + outputs * per_token
    total = float(busy.sum())
    return Throughput(
        low,
        busy,
        float(inputs.sum()) / total,
        float((inputs + outputs).sum()) / total,
        len(inputs) / total,
        model.kind,
    )
