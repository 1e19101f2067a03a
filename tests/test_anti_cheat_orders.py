"""Nobody gains by orders that dodge work or bills; what instances cost is counted by hand.

`test_anti_cheat_day` and `test_anti_cheat_worlds` have those who do less.
"""

from __future__ import annotations

from functools import cache
from itertools import cycle

import numpy as np
import pytest

from baselines import make_policy
from llmscale_env.control.command import Command
from llmscale_env.control.regions import ScalingOrder
from llmscale_env.control.reward import draw_requests
from llmscale_env.control.run import run_episode
from llmscale_env.control.simulation import ClusterSimulation
from llmscale_env.envs.burst_multicast import BurstMulticastEnv
from llmscale_env.envs.multi_model_queue import MultiModelQueueEnv
from llmscale_env.envs.placement import PlacementEnv
from llmscale_env.envs.placement_per_request import PlacementPerRequestEnv
from llmscale_env.scenarios import load_scenario
from tests.env_kinds import DAY, MULTICAST, PLACEMENT, REGION
from tests.test_anti_cheat_worlds import SERVING

pytestmark = pytest.mark.slow

SEEDS = {"placement-per-request": (300,)}
"""Of the episodes; elsewhere 300 and 301."""

# ---- bills ----

BILLS = {
    # 6 GPUs serve at the start. The engine starts for 24 s, which costs nothing; what loads then is billed.
    "mixed-slo: one more": (DAY, "mixed", (4, 4, 4), 6 * 90 + (90 - 24)),
    "mixed-slo: one more and back": (DAY, "mixed", (4, 3, 4, 3), 6 * 120 + 2 * (30 - 24)),
    "mixed-slo: one less and back": (DAY, "mixed", (2, 3, 2, 3), 5 * 120 + 2 * (30 - 24)),
    # 12 workers of one GPU. Those of two GPUs are billed from the order on.
    "placement: one more and back": (PLACEMENT, "tp2", (1, 0, 1, 0), 12 * 20 + 2 * 2 * 5),
    "placement: one less and back": (PLACEMENT, "tp1", (11, 12, 11, 12), 11 * 20 + 2 * 5),
    "burst-multicast: one more and back": (MULTICAST, "prefill", (3, 2, 3, 2), 4 * 4 + 2 * 1),
    # 18 VMs of 8 GPUs. One that is given back takes a minute until it is leased out.
    "multi-region: one more and back": (
        *(REGION, "bloom-us-west", (4, 3), 8 * (18 * 1800 + 900 + 60)),
    ),
}
"""Kind, pool, its targets at the first decisions, GPU-seconds."""


@pytest.mark.parametrize("case", BILLS)
def test_who_starts_loads_drains_or_is_given_back_is_billed(case: str):
    kind, pool, targets, gpu_s = BILLS[case]
    scenario = kind.single(overrides=kind.short).scenario
    nobody = draw_requests(scenario, np.random.default_rng(0)).take(np.zeros(0, np.intp))
    sim = ClusterSimulation(scenario)
    sim.start(0, nobody)
    by_hand = {p.name: ScalingOrder("none") for p in scenario.fleet.pools if p.scaling is not None}
    found = 0.0
    for target in targets:
        sim.apply(0, Command(targets={pool: target}, scaling=by_hand))
        sim.advance()
        found += sim.window(0).gpu_s.sum()
    assert found == pytest.approx(gpu_s)


# ---- orders ----

ENVS = {
    "placement": PlacementEnv,
    "placement-per-request": PlacementPerRequestEnv,
    "burst-multicast": BurstMulticastEnv,
    "multi-model-queue": MultiModelQueueEnv,
}
EVERY_LLM = [
    {f"gpu-{i}/serves": f"{llm}/{slo_class}/first" for i in range(4)}
    for llm, slo_class in (
        ("mistral-7b", "batch-2"),
        ("vicuna-13b", "batch-2"),
        ("vicuna-13b@a", "batch-2"),
    )
]
EVICT = {f"gpu-{i}/make_way": "evict" for i in range(4)}


def fleet(prefill: int, decode: int, **parts: str) -> dict[str, str]:
    """Counts of burst-multicast; parts' names with `_` for `/`."""
    counts = {"prefill/instances": str(prefill), "decode/instances": str(decode)}
    return counts | {name.replace("_", "/"): choice for name, choice in parts.items()}


def workers(tp1: int = 0, tp2: int = 0, tp4: int = 0) -> dict[str, str]:
    """Counts of placement."""
    counts = {"tp1": tp1, "tp2": tp2, "tp4": tp4}
    return {f"{pool}/instances": str(n) for pool, n in counts.items()}


ORDERS = {
    "placement": {
        "all anew at every other heartbeat": [workers(24), workers()],
        "one kind after another": [workers(12), workers(tp2=10), workers(tp4=6)],
        "two serve, others load and stop": [workers(2, tp4=5), workers(2)],
    },
    "placement-per-request": {
        "wait for ever": [{"request/worker": "wait"}],
        "always the fullest": [{"request/worker": "rank-4"}],
    },
    "burst-multicast": {
        "all anew at every other second": [fleet(12, 4), fleet(0, 0)],
        "others load from SSD for ever": [
            fleet(12, 2, weights_from="ssd", weights_live="on"),
            fleet(2, 2, weights_from="ssd", weights_live="on"),
        ],
        "others load and help for ever": [
            fleet(12, 2, weights_from="any", weights_live="on"),
            fleet(2, 2, weights_from="any", weights_live="on"),
        ],
        "weights in circles": [
            fleet(4, 2, weights_from="any", decode_by="mutate"),
            fleet(2, 4, weights_from="any", decode_by="mutate"),
        ],
    },
    "multi-model-queue": {
        "each its own LLM": [{}],
        "another LLM at every decision": [orders | EVICT for orders in EVERY_LLM],
        "what can wait only": EVERY_LLM[:1] * 60 + EVERY_LLM[1:2] * 60 + EVERY_LLM[2:] * 60,
    },
}
"""By environment, choices by part that come round and round; a part that is not named takes its first."""


def total(env, orders, seed: int) -> float:
    decoder = env.codec.decoder
    actions = [
        [
            choices.index(order[part]) if part in order else 0
            for part, choices in zip(decoder.parts, map(list, decoder.choices), strict=True)
        ]
        for order in orders
    ]
    env.reset(seed=seed)
    found = 0.0
    for action in cycle(actions):
        _, reward, _, truncated, _ = env.step(np.array(action))
        found += reward
        if truncated:
            return found
    raise AssertionError


def seeds_of(env: str) -> tuple[int, ...]:
    return SEEDS.get(env, (300, 301))


@cache
def serving(env: str) -> float:
    policy, scenario = make_policy(SERVING[env]), load_scenario(env)
    return np.mean(
        [run_episode(policy, scenario, seed).summary["reward"] for seed in seeds_of(env)]
    )


@pytest.mark.parametrize("env, cheat", [(env, cheat) for env in ORDERS for cheat in ORDERS[env]])
def test_orders_that_serve_less_score_below_a_policy_that_serves(env: str, cheat: str):
    made = ENVS[env]()
    assert np.mean([total(made, ORDERS[env][cheat], seed) for seed in seeds_of(env)]) < serving(env)
