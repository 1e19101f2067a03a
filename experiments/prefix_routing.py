"""What routing does for prefix caches: hit rate and TTFT under four routers, where prompts are shared.

    python -m experiments.prefix_routing [rate=30] [seeds=3]

Eight instances of Llama 3.1 8B on one A100-80GB each, scheduled as vLLM V1 with its prefix cache, for ten
minutes. Every request begins with one of 400 shared prompts of 2,048 tokens, the k-th as often as 1/k says,
and goes on with tokens of its own: input and output are a ShareGPT turn's. Arrivals are Poisson, `rate`
requests per second in all; `seeds` says how many draws of them. The caches of one instance cannot hold all
prompts, so what is found depends on what it is sent.

Prints per router, as means over the seeds: prompt tokens found in the caches, TTFT, ITL, E2E.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np

from baselines import make_policy
from experiments.bench_engines import GPU, LENGTHS, LLM
from experiments.output import text_table
from llmscale_env._cli import number, parse_options, run_command, whole
from llmscale_env.control.run import run_episode
from llmscale_env.scenarios import Scenario, validate_scenario
from llmscale_env.workload import tables
from llmscale_env.workload.requests import RequestTable

ROUTERS = ("round-robin", "jsq-requests", "least-pending-prefill", "prefix-aware")
INSTANCES, HORIZON_S = 8, 600
PROMPTS, PROMPT_TOKENS, MAX_TOKENS = 400, 2048, 4096
HEAD = (
    "router",
    "prefix hits",
    "cached tokens",
    "TTFT p50 s",
    "TTFT p99 s",
    "ITL mean s",
    "E2E p50 s",
)


def cluster(router: str) -> Scenario:
    """The instances, all of them active from the start to the end."""
    pool = {
        "name": "general",
        "llm": LLM,
        "gpu": GPU,
        "max_instances": INSTANCES,
        "initial_instances": INSTANCES,
        "batch_limit": 256,
        "max_batch": 256,
        "chunk_tokens": 2048,
        "v1": {},
    }
    return validate_scenario(
        {
            "name": f"prefix-routing-{router}",
            "horizon_s": HORIZON_S,
            "workload": {},
            "fleet": {
                "max_gpus": INSTANCES,
                "pools": [pool],
                "routes": [{"kind": router, "pools": ["general"]}],
            },
        }
    )


def arrivals(scenario: Scenario, rate_per_s: float, seed: int) -> RequestTable:
    """The requests of a seed, the same for every router."""
    rng = np.random.default_rng(seed)
    n = rng.poisson(rate_per_s * HORIZON_S)
    drawn = tables.load_lengths(LENGTHS).sample(n, rng)
    own, output = (tables.round_tokens(column, MAX_TOKENS) for column in drawn)
    weight = 1 / np.arange(1, PROMPTS + 1)
    return RequestTable.build(
        np.sort(rng.uniform(0, HORIZON_S, n)),
        PROMPT_TOKENS + own,
        output,
        prefix_of=-2 - rng.choice(PROMPTS, n, p=weight / weight.sum()),
        prefix_tokens=PROMPT_TOKENS,
        llm_names=(LLM,),
        class_names=tuple(c.name for c in scenario.classes),
    )


def measured(router: str, rate_per_s: float, seeds: Sequence[int]) -> tuple[str, ...]:
    """A row of `HEAD`."""
    scenario = cluster(router)
    found: list[list[float]] = []
    for seed in seeds:
        requests = arrivals(scenario, rate_per_s, seed)
        summary = run_episode(make_policy("static"), scenario, seed, requests=requests).summary
        keys = ("cached_tokens_mean", "ttft_s_p50", "ttft_s_p99", "itl_s_mean", "e2e_s_p50")
        joint = [summary[f"joint/{key}"] for key in keys]
        found.append([summary["prefix_hit_rate"], *joint])
    hits, cached, p50, p99, itl, e2e = np.mean(found, axis=0)
    times = (f"{p50:.3f}", f"{p99:.3f}", f"{itl:.4f}", f"{e2e:.2f}")
    return router, f"{100 * hits:.1f} %", f"{cached:,.0f}", *times


def main(words: Sequence[str] | None = None) -> int:
    """Run the command; 0 when it worked, 2 for a slip."""
    return run_command("prefix_routing", __doc__, words, _run, wordless=True)


def _run(words: list[str]) -> int:
    options = parse_options(words, ("rate", "seeds"))
    rate = number(options, "rate", 30.0, 0.1, 1000.0)
    seeds = range(whole(options, "seeds", 3, 1, 1000))
    print(text_table(HEAD, [measured(router, rate, seeds) for router in ROUTERS]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
