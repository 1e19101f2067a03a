"""Theta of section 3.2 as it is defined there: tokens per second "achieved at a certain target latency".

Some instances of a pool are simulated by themselves, with a pool's own iteration times and limits, requests
of the workload's lengths and Poisson arrivals, the shortest queue of predicted tokens first. Theta is
the largest load, per instance, at which the target share of requests meets every target that is charged.
The paper's service levels are of TTFT (section 3.3 names E2E as a further factor). A scenario may charge
ITL as well. `throughput` computes what instances serve if nobody ever waits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from baselines.sageserve.throughput import throughput
from llmscale_env.scenarios.fleet import RouteConfig
from llmscale_env.scenarios.pools import PoolConfig
from llmscale_env.scenarios.schema import Scenario
from llmscale_env.sim.compile import compile_cluster, ps
from llmscale_env.sim.engine import make_engine
from llmscale_env.sim.metrics import ItlStatistic, judge
from llmscale_env.workload.config import SLOClass
from llmscale_env.workload.requests import RequestTable

STEPS = 9
"""Halvings of the interval in which theta lies: to 0.3 % of the computed throughput."""

LONGEST_S = 1e6
"""Longest time in which requests arrive."""

HIGHEST = 1.5
"""Where the search begins, over the computed throughput, which is that of mean requests."""


@dataclass(frozen=True)
class ProfileSettings:
    """How theta is measured.

    Attributes:
        instances: that share the load.
        ttft_s: target (ours). Interactive service levels range "from a second to a minute" (section 3.3);
            the released code has 10 s, within which one in twenty of Bloom's prompts of the week is not
            even prefilled.
        itl_s: target of the inter-token latency; None: none (the paper's levels).
        itl_statistic: which ITL of a request that target holds for (`sim.metrics.judge`).
        attainment: share of requests that have to meet the targets (section 3.3: "95 %ile").
        duration_s, requests: of a run at least so long, and so many. Fewer leave theta to chance where one in
            twenty prompts takes nearly the target, as Bloom's do.
        seed: of gaps between arrivals, and which lengths are taken.

    Raises:
        ValueError: a value out of range.
    """

    instances: int = 3
    ttft_s: float = 20.0
    itl_s: float | None = None
    itl_statistic: ItlStatistic = "mean"
    attainment: float = 0.95
    duration_s: float = 1800.0
    requests: int = 20_000
    seed: int = 990_101

    def __post_init__(self) -> None:
        if self.instances < 1 or self.requests < 1:
            raise ValueError(
                f"instances = {self.instances}, requests = {self.requests}: must be at least 1"
            )
        if not (self.itl_s is None or self.itl_s > 0):
            raise ValueError(f"itl_s = {self.itl_s}: must be positive, or None")
        if not 0 < self.attainment <= 1:
            raise ValueError(f"attainment = {self.attainment}: must be above 0 and at most 1")


class Profile:
    """Instances of a pool, to be put under load.

    Args:
        scenario: memory, iteration times, paging.
        pool: of which kind.
        input_tokens, output_tokens: (n,) of requests as they come.
        settings: see there.
    """

    def __init__(
        self,
        scenario: Scenario,
        pool: PoolConfig,
        input_tokens: ArrayLike,
        output_tokens: ArrayLike,
        settings: ProfileSettings | None = None,
    ) -> None:
        self.settings = settings = settings or ProfileSettings()
        self.slo_class = SLOClass(
            name="profile", ttft_s=settings.ttft_s, itl_s=settings.itl_s or settings.ttft_s
        )
        n = settings.instances
        alone = pool.model_copy(
            update={
                "max_instances": n,
                "initial_instances": n,
                "region": None,
                "spot": None,
                "scaling": None,
                "pull": (),
            }
        )
        fleet = scenario.fleet.model_copy(
            update={
                "pools": (alone,),
                "max_gpus": n * pool.tp,
                "queues": (),
                "group_queues": 0,
                "queue_manager": None,
                "routes": (RouteConfig(kind="jsq-tokens", pools=(pool.name,)),),
            }
        )
        self.spec = compile_cluster(
            scenario.model_copy(
                update={
                    "fleet": fleet,
                    "regions": (),
                    "latency": None,
                    "classes": (self.slo_class,),
                }
            )
        )
        inputs, outputs = np.asarray(input_tokens), np.asarray(output_tokens)
        most = throughput(pool.llm, pool.gpu, pool.tp, inputs, outputs)
        self.upper_tokens_per_s = most.tokens_per_s
        # As long as asked for at the highest load, longer at others.
        many = max(settings.requests, round(settings.duration_s * n * most.requests_per_s))
        rng = np.random.default_rng(settings.seed)
        self._gaps = rng.standard_exponential(many)
        rows = rng.integers(len(inputs), size=many)
        self.inputs, self.outputs = inputs[rows], outputs[rows]
        self._mean_output = max(1, round(float(outputs.mean())))
        self._mean_tokens = float((self.inputs + self.outputs).mean())
        self._names = (pool.llm,), (self.slo_class.name,)

    def attainment(self, tokens_per_s: float) -> float:
        """Share of requests that meet the targets at so many tokens per second and instance."""
        per_s = tokens_per_s * self.settings.instances / self._mean_tokens
        # The smallest loads of a search are tried on fewer requests: times of the engines are bounded.
        n = max(1, min(len(self._gaps), int(per_s * LONGEST_S)))
        arrival_s = np.cumsum(self._gaps[:n]) / per_s
        requests = RequestTable.build(
            arrival_s,
            self.inputs[:n],
            self.outputs[:n],
            predicted_output_tokens=self._mean_output,
            llm_names=self._names[0],
            class_names=self._names[1],
        )
        engine = make_engine(self.spec)
        engine.reset(0, requests)
        # A request without its first token by then is late whenever it comes, and one that has not
        # finished is by then too slow in the mean.
        last_s = self.slo_class.ttft_s
        if self.settings.itl_s is not None:
            last_s += self.settings.itl_s * float(self.outputs.max())
        end = ps(float(arrival_s[-1]) + last_s)
        engine.advance(0, end)
        found = judge(
            requests, engine.results(0), [self.slo_class], end, self.settings.itl_statistic
        )
        if self.settings.itl_s is None:
            return float(found.ttft_met.mean())
        return float((found.ttft_met & found.itl_met).mean())

    def theta(self) -> float:
        """Tokens per second of an instance at the target; 0 if even a tiny load misses it."""
        low, high = 0.0, HIGHEST * self.upper_tokens_per_s
        for _ in range(STEPS):
            middle = (low + high) / 2
            if self.attainment(middle) >= self.settings.attainment:
                low = middle
            else:
                high = middle
        return low
