"""What the figures of QLM's motivation and estimator share: LLMs, GPUs, and small clusters by hand.

The paper serves "Mistral-7B, Vicuna-13B and Llama-70B" on A10 and A100 GPUs (section 8) and does not
say how many GPUs an instance has: ours are the fewest of 1, 2, 4, 8 that hold the weights and leave KV memory
for a full batch of ShareGPT requests (`A100`), or that hold them at all (`A10`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np

from experiments.harness.parameters import Parameters, paper
from llmscale_env.scenarios.load import validate_scenario
from llmscale_env.scenarios.schema import Scenario
from llmscale_env.workload import tables
from llmscale_env.workload.requests import RequestTable

A100 = {"mistral-7b": 1, "vicuna-13b": 1, "llama-2-70b": 4}
"""GPUs per instance on A100-80GB; the paper's LLMs (its Llama-70B is Llama 2, reference 47)."""

A10 = {"mistral-7b": 1, "vicuna-13b": 2}
"""On A10-24GB. 70 billion weights would take eight, which have no fast links: left out."""

GPUS = {"a100-80gb": A100, "a10-24gb": A10}
LENGTHS = "sharegpt-single-turn"
MAX_TOKENS = 4096
"""Of a prompt and of an output each."""

SHORT = {"mistral-7b": "Mistral-7B", "vicuna-13b": "Vicuna-13B", "llama-2-70b": "Llama-2-70B"}


class PaperLlms(Parameters):
    """What figures that go over the paper's LLMs share."""

    llms: Annotated[
        tuple[Literal["mistral-7b", "vicuna-13b", "llama-2-70b"], ...],
        paper("section 8", min_length=1),
    ] = ("mistral-7b", "vicuna-13b", "llama-2-70b")


def gpus_per_instance(llm: str, gpu: str = "a100-80gb") -> int:
    """Tensor-parallel degree.

    Raises:
        KeyError: the LLM is not served on this GPU here.
    """
    return GPUS[gpu][llm.partition("@")[0]]


def shown(llm: str, gpu: str = "a100-80gb") -> str:
    """For pictures: "Llama-2-70B, 4 x a100-80gb"."""
    return f"{SHORT[llm.partition('@')[0]]}, {gpus_per_instance(llm, gpu)} x {gpu}"


def cluster(
    llms: Sequence[str],
    queues: Sequence[str],
    *,
    gpu: str = "a100-80gb",
    tp: int | None = None,
    instances: int = 1,
    batch_limit: int = 256,
    **pool: Any,
) -> Scenario:
    """Instances of one pool, and a shared queue per class, which they pull from in order.

    Args:
        llms: what the instances serve in turn, the first one loaded.
        queues: names of the classes, and of their queues.
        gpu: card.
        tp: GPUs per instance; None: `gpus_per_instance` of the first LLM.
        instances: how many.
        batch_limit: vLLM's default.
        pool: further fields of the pool.
    """
    return validate_scenario(
        {
            "name": "qlm-motivation",
            "classes": [
                {"name": name, "ttft_s": 20, "itl_s": 10, "priority": int(k > 0)}
                for k, name in enumerate(queues)
            ],
            "workload": {},  # requests come from elsewhere
            "fleet": {
                "max_gpus": 100_000,
                "queues": [{"name": name} for name in queues],
                "pools": [
                    {
                        "name": "pool",
                        "llm": llms[0],
                        "swaps_to": list(llms[1:]),
                        "gpu": gpu,
                        "tp": gpus_per_instance(llms[0], gpu) if tp is None else tp,
                        "v1": None,
                        "max_instances": instances,
                        "initial_instances": instances,
                        "batch_limit": batch_limit,
                        "max_batch": batch_limit,
                        "pull": list(queues),
                        **pool,
                    }
                ],
                "routes": [
                    {"slo_class": name, "kind": "shared-queue", "queue": name} for name in queues
                ],
            },
        }
    )


def lengths(table: str, n: int, rng: np.random.Generator) -> Mapping[str, Any]:
    """Prompt and output tokens of `n` requests, as columns of `RequestTable.build`."""
    prompt, output = (
        tables.round_tokens(column, MAX_TOKENS)
        for column in tables.load_lengths(table).sample(n, rng)
    )
    return {"input_tokens": prompt, "output_tokens": output}


def together(parts: Sequence[RequestTable]) -> RequestTable:
    """Requests of several tables by arrival, those of earlier tables first at the same time."""
    arrival = np.concatenate([part.arrival_ps for part in parts])
    order = np.argsort(arrival, kind="stable")
    columns = ("llm", "region", "slo_class", "input_tokens", "output_tokens")
    joined: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts])[order] for name in columns
    }
    return RequestTable(
        arrival_ps=arrival[order],
        predicted_output_tokens=joined["output_tokens"],
        llm_names=parts[0].llm_names,
        class_names=parts[0].class_names,
        region_names=parts[0].region_names,
        **joined,
    )
