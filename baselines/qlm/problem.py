"""From a view of the cluster to what the global scheduler decides on: waiting-time estimates (section 6)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from baselines.qlm.book import LiveGroup
from baselines.qlm.history import OutputHistory, Statistics
from baselines.qlm.schedule import QueueProblem
from baselines.qlm.waiting import BatchProfile, Decode, batch_size
from llmscale_env.control.view import ClusterView
from llmscale_env.scenarios.schema import Scenario
from llmscale_env.sim.compile import pool_tables, serving, swap_times_s
from llmscale_env.sim.spec import InstanceState

NO_HURRY_S = 86_400.0
"""SLO of a group whose requests have all had their first token."""


class Profiler:
    """Hardware profiling: what one batch of an LLM takes on an instance of a pool.

    Args:
        scenario: pools and their iteration times.
        inefficiency: epsilon.
    """

    def __init__(self, scenario: Scenario, inefficiency: float = 1.0) -> None:
        self.scenario = scenario
        self._inefficiency = inefficiency
        self._profile = lru_cache(maxsize=4096)(self._measure)

    def kv_tokens(self, p: int, llm: str) -> int:
        """KV tokens of an instance of pool `p` that serves `llm`."""
        pool = serving(self.scenario.fleet.pools[p], llm)
        return int(pool_tables(self.scenario, pool).kv_capacity_tokens)

    def profile(
        self, p: int, llm: str, batch_limit: int, mean_input: float, mean_output: float
    ) -> BatchProfile:
        """Of requests with these means (rounded, so that few batches are profiled)."""
        return self._profile(p, llm, batch_limit, _rounded(mean_input), _rounded(mean_output))

    def _measure(
        self, p: int, llm: str, batch_limit: int, mean_input: int, mean_output: int
    ) -> BatchProfile:
        tables = pool_tables(self.scenario, serving(self.scenario.fleet.pools[p], llm))
        batch = batch_size(
            tables.kv_capacity_tokens,
            mean_input,
            mean_output,
            largest=batch_limit,
            held_output=0.5,
        )
        running = max(1, int(batch))
        context = running * (mean_input + mean_output / 2)
        prefill_s = tables.prefill_s(mean_input)
        # While one of the batch is prefilled the others wait: each output token pays its share.
        stalled = running * prefill_s / mean_output
        decode_s = tables.decode_s(running, context) + stalled
        return BatchProfile(prefill_s, decode_s, batch, self._inefficiency)


def _rounded(tokens: float) -> int:
    """To two digits."""
    if tokens < 1:
        return 1
    scale = 10 ** max(0, int(np.floor(np.log10(tokens))) - 1)
    return int(round(tokens / scale) * scale)


def serving_instances(view: ClusterView) -> NDArray[np.int64]:
    """Numbers of the instances that virtual queues are made for: active ones and those that load."""
    state = view.instances["state"]
    good = (state == InstanceState.ACTIVE) | (state == InstanceState.LOADING)
    return np.flatnonzero(good)


def group_statistics(
    group: LiveGroup, history: OutputHistory, mean_input: float
) -> tuple[float, Statistics]:
    """Mean input of a group's requests, and what is believed of their outputs."""
    stats = history.statistics((group.cell.llm, group.cell.slo_class))
    mean = float(group.input_tokens.mean()) if len(group.input_tokens) else mean_input
    return mean, stats


def queue_problem(
    view: ClusterView,
    instances: NDArray[np.int64],
    groups: Sequence[LiveGroup],
    history: OutputHistory,
    profiler: Profiler,
    *,
    mean_input: float,
    max_output: float,
    decode: Decode = "maximum",
    reserve: float = 0.0,
    fixed_llm: NDArray[np.int64] | None = None,
    staying: NDArray[np.bool_] | None = None,
) -> QueueProblem:
    """Groups that wait, and instances, as the scheduler takes them.

    A group's first tokens come while it is served: what counts as its own wait is the largest, over its
    requests in order, of the time until its turn within the group less how much later than the oldest it
    came.

    Args:
        view: the cluster.
        instances: numbers of the instances.
        groups: with requests that wait.
        history: outputs of finished requests, by (LLM, class), and by LLM over all classes.
        profiler: hardware profiles.
        mean_input: input tokens where a group does not know.
        max_output: most tokens that an LLM may produce.
        decode: how long the last request of a group is taken to decode (`waiting.outlook`).
        reserve: share of a TTFT target that is to stay free.
        fixed_llm: (I,) the only LLM that an instance may serve; None: all of its pool's.
        staying: (I, N) whether requests that run on an instance stay there if the group comes next. If it
            is of another LLM it waits for the decode time of the last of them (Eq. 4). None: a swap
            removes all that run.
    """
    fleet = view.scenario.fleet
    pools = fleet.pools
    slots = view.instances[instances]
    pool_of = view.instance_pool[instances]
    g, i, m = len(instances), len(groups), len(fleet.llms)
    work, completion, own = (np.full((g, i), np.inf) for _ in range(3))
    swap = np.full((g, m), np.inf)
    ready_tail = np.zeros((g, i))
    weights = view.weights_ready_s[instances]
    memo: dict[tuple[int, int, int], tuple[float, float, float]] = {}
    for k in range(g):
        p = int(pool_of[k])
        for llm in pools[p].llms:
            number = fleet.llms.index(llm)
            if fixed_llm is not None and number != fixed_llm[k]:
                continue
            if number == slots["llm"][k]:
                swap[k, number] = 0.0
                continue
            fetch_s, move_s = swap_times_s(view.scenario, pools[p], llm)
            swap[k, number] = min(float(weights[k, number]), fetch_s) + move_s
        limit = int(slots["batch_limit"][k])
        for n, group in enumerate(groups):
            llm = fleet.llms[group.cell.llm]
            if llm not in pools[p].llms:
                continue
            key = (p, n, limit)
            if key not in memo:
                mean, stats = group_statistics(group, history, mean_input)
                profile = profiler.profile(p, llm, limit, mean, stats.mean)
                each = stats.mean / profile.tokens_per_s
                tokens = max(max_output, stats.largest) if decode == "maximum" else stats.mean
                tail = (
                    profile.prefill_s + tokens * profile.inefficiency * profile.decode_s_per_token
                )
                turn = np.arange(len(group.arrival_s)) * each
                later = group.arrival_s - group.arrival_s[0] if len(turn) else turn
                wait = float((turn - later).max()) if len(turn) else 0.0
                memo[key] = (group.waiting * each, tail, max(0.0, wait) + profile.prefill_s)
            takes, tail, wait = memo[key]
            work[k, n], completion[k, n], own[k, n] = takes, takes + tail, wait
        if staying is not None and staying[k].any():
            llm = fleet.llms[int(slots["llm"][k])]
            stats = history.statistics(int(slots["llm"][k]))
            profile = profiler.profile(p, llm, limit, mean_input, stats.mean)
            tokens = max_output if decode == "maximum" else stats.mean
            ready_tail[k, staying[k]] = tokens * profile.decode_s_per_token
    loading = np.fmax(slots["loaded_s"] - view.time_s, 0.0)  # NaN: it does not load
    slo = np.array(
        [
            (1 - reserve) * view.scenario.classes[group.cell.slo_class].ttft_s
            - (view.time_s - float(group.arrival_s[0]))
            if len(group.arrival_s)
            else NO_HURRY_S
            for group in groups
        ]
    )
    return QueueProblem(
        llm=np.array([group.cell.llm for group in groups], np.int64),
        slo_s=slo,
        requests=np.array([max(1, len(group.arrival_s)) for group in groups], np.float64),
        work_s=work,
        completion_s=completion,
        swap_s=swap,
        loaded=slots["llm"].astype(np.int64),
        ready_s=np.where(slots["state"] == InstanceState.LOADING, loading, 0.0),
        ready_tail_s=ready_tail,
        own_wait_s=np.where(np.isfinite(own), own, 0.0),
    )
