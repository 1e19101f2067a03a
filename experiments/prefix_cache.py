"""What a prefix cache is worth, and what the routing rule is worth to it.

    python -m experiments.prefix_cache [scenario=chat-prefix] [scenario.FIELD=VALUE ...] [routers=NAME,NAME]
                                       [seeds=0,1,2] [out=DIRECTORY]

A fixed fleet serves the scenario's requests under each routing rule, with the prefix cache of its pools (of
those with `v1`) and without it. A row has the requests of all seeds together. `hit_rate` is the share of
the prompt tokens of admitted requests that were found in the cache; `ttft` is of requests with a first
token, `itl` of finished ones; `attainment` is the share of requests that met both targets of their class.

`session` is what load balancers do with a cookie, and no rule of the engines. A request goes where the one
went that more than half of its prompt comes from; any other one goes to the next instance in turn. Above the
table stands what one cache without limits, which all instances share and each prompt and answer enters when
its request arrives, would find. Writes `prefix_cache.csv`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from baselines import make_policy
from experiments.output import RESULTS, text_table, write_csv
from llmscale_env._cli import (
    Slip,
    check_folder,
    parse_scenario_words,
    run_command,
    some_of,
    whole_numbers,
)
from llmscale_env.control.command import RULES
from llmscale_env.control.reward import draw_requests
from llmscale_env.control.run import run_episode
from llmscale_env.control.simulation import ClusterSimulation
from llmscale_env.scenarios.load import ScenarioError, load_scenario, with_overrides
from llmscale_env.scenarios.schema import Scenario
from llmscale_env.workload.requests import RequestTable

SCENARIO = "chat-prefix"
SEEDS = (0, 1, 2)
NEED_MORE = ("class-affine", "shared-queue", "custom", "hold", "best-fit", "regional")
"""Rules that ask for more than instances to choose from."""

SESSION = "session"
ROUTERS = (*(name for name in RULES if name not in NEED_MORE), SESSION)
HEAD = (
    "router", "prefix_cache", "requests", "hit_rate", "ttft_s_p50", "ttft_s_p90", "itl_s_p50", "attainment",
)  # fmt: skip


def variant(scenario: Scenario, router: str, cached: bool) -> Scenario:
    """The scenario with one rule on all routes, and the caches of its pools on or off."""
    kind = "custom" if router == SESSION else router
    changes: dict[str, Any] = {
        f"fleet.routes.{k}.kind": kind for k in range(len(scenario.fleet.routes))
    }
    for pool in scenario.fleet.pools:
        if pool.v1 is not None:
            changes[f"fleet.pools.{pool.name}.v1.prefix_cache"] = cached
    return with_overrides(scenario, changes)


def shareable(requests: RequestTable) -> tuple[int, int]:
    """Prompt tokens that are those of an earlier request, and all of them."""
    shared = 0 if requests.prefixes is None else int(requests.prefixes.shared_tokens.sum())
    return shared, int(requests.input_tokens.sum())


def by_session(requests: RequestTable) -> Any:
    """A router that keeps the requests of a conversation together."""
    from llmscale_env.sim.custom_router import router

    home = np.arange(len(requests))
    if requests.prefixes is not None:
        names, sessions = requests.prefixes.name, 0
        for r in range(len(requests)):
            owner, end = [(-1, 0), *requests.prefixes.spans(r)][-1]
            at = np.searchsorted(names[:r], owner)
            if 2 * end > requests.input_tokens[r] and at < r and names[at] == owner:
                home[r] = home[at]
            else:
                home[r], sessions = sessions, sessions + 1

    def at_home(features, n, request_id, input_tokens, predicted, slo_class):  # type: ignore[no-untyped-def]
        return home[request_id] % n

    return router(at_home)


def measure(scenario: Scenario, seeds: Sequence[int]) -> dict[str, float]:
    """The columns of `HEAD` from `requests` on."""
    custom = any(route.kind == "custom" for route in scenario.fleet.routes)
    frames, cached, asked = [], 0, 0
    for seed in seeds:
        requests = draw_requests(scenario, np.random.default_rng(seed))
        with_router = by_session(requests) if custom else None
        simulation = ClusterSimulation(scenario, custom_router=with_router)
        result = run_episode(
            make_policy("static"),
            scenario,
            seed,
            requests=requests,
            simulation=simulation,
            custom_router=with_router,
        )
        frames.append(result.requests)
        rows = simulation.engine.results(0)
        admitted = rows["admitted_ps"] >= 0
        cached += int(rows["cached_tokens"][admitted].sum())
        asked += int(result.requests["input_tokens"].to_numpy()[admitted].sum())
    columns = {
        name: np.concatenate([frame[name].to_numpy() for frame in frames])
        for name in ("outcome", "ttft_s", "itl_mean_s")
    }
    p50, p90 = np.nanquantile(columns["ttft_s"], (0.5, 0.9))
    return {
        "requests": len(columns["outcome"]),
        "hit_rate": cached / max(asked, 1),
        "ttft_s_p50": float(p50),
        "ttft_s_p90": float(p90),
        "itl_s_p50": float(np.nanmedian(columns["itl_mean_s"])),
        "attainment": float((columns["outcome"] == "on_time").mean()),
    }


def main(words: Sequence[str] | None = None) -> int:
    """Run the command; 0 when it worked, 2 for a slip."""
    return run_command("prefix_cache", __doc__, words, _run, slips=(ScenarioError,), wordless=True)


def _run(words: list[str]) -> int:
    options, name, changes = parse_scenario_words(words, ("routers", "seeds", "out"))
    routers = some_of(options, "routers", ROUTERS)
    seeds = whole_numbers(options, "seeds", SEEDS, 0, 10**9)
    out = Path(options.get("out", RESULTS / "prefix_cache"))
    check_folder("out", out)
    scenario = load_scenario(name or SCENARIO, **changes)
    if all(pool.v1 is None for pool in scenario.fleet.pools):
        raise Slip(f"scenario = {scenario.name!r}: none of its pools has v1, and so a prefix cache")
    counts = [shareable(draw_requests(scenario, np.random.default_rng(seed))) for seed in seeds]
    found, asked = np.sum(counts, axis=0)
    if asked == 0:
        raise Slip(f"scenario = {scenario.name!r}: brings no requests with seeds {list(seeds)}")
    print(
        f"{scenario.name}, seeds {','.join(map(str, seeds))}: {found / asked:.1%} of the prompt "
        "tokens are those of an earlier request"
    )
    rows = []
    for router in routers:
        for cached in (True, False):
            measured = measure(variant(scenario, router, cached), seeds)
            rows.append((router, "on" if cached else "off", *measured.values()))
    print(text_table(HEAD, rows))
    print(f"written: {write_csv(out / 'prefix_cache.csv', HEAD, rows)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
