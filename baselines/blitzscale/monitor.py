"""What BlitzScale's monitor knows: what an instance can do, and what is asked of all of them (section 5.3).

Ours: tokens per second are those of arrivals in a sliding window and of what waits from before, since a
saturated cluster completes no more than it can, however much comes, and a queue is work also when nobody
comes any more; KV in use is that of decode instances, with the contexts of requests that
wait for a decode instance's memory.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from baselines.aladdin.fleet import history
from baselines.blitzscale.trigger import prefill_tokens_per_s
from baselines.parameters import PolicyError
from llmscale_env.cluster.cards import llm_card
from llmscale_env.control.view import ClusterView, RequestsUnderWay
from llmscale_env.scenarios.schema import Scenario
from llmscale_env.sim.compile import cluster_topology, pool_tables, pool_times
from llmscale_env.sim.spec import InstanceState, RequestState

_TO_PREFILL = (RequestState.GATEWAY, RequestState.OWN_QUEUE, RequestState.PREEMPTED)


@dataclass(frozen=True)
class Pair:
    """The pools of the LLM.

    Attributes:
        prefill, decode: their numbers.
        twins: whether they sit on the same GPUs.
    """

    prefill: int
    decode: int
    twins: bool


def pair_of(scenario: Scenario, policy: str) -> Pair:
    """Prefill and decode pool of a scenario with one LLM.

    Raises:
        PolicyError: several LLMs, not one pool of each phase, or pools whose weights do not flow.
    """
    pools, llms = scenario.fleet.pools, scenario.fleet.llms
    if len(llms) != 1:
        raise PolicyError(f"{policy}: serves one LLM, scenario {scenario.name!r} has {list(llms)}")
    phases = sorted(pool.phase for pool in pools)
    if phases != ["decode", "prefill"] or not all(pool.flows for pool in pools):
        raise PolicyError(
            f"{policy}: needs one pool of phase 'prefill' and one of phase 'decode', both with weights = "
            f"'flow'; scenario {scenario.name!r} has phases {phases}, weights "
            f"{sorted({pool.weights for pool in pools})}"
        )
    prefill = [pool.phase for pool in pools].index("prefill")
    return Pair(prefill, 1 - prefill, any(pool.twin_of for pool in pools))


@dataclass(frozen=True)
class InstanceCapacity:
    """What one instance can do at most, profiled before it serves.

    Attributes:
        prefill_tokens_per_s: of a prefill instance with moderate batches.
        prefill_s: time of one mean prompt.
        decode_tokens: KV tokens of a decode instance.
        decode_per_s: requests per second of a decode instance with so many.
        input_tokens: mean of earlier requests.
    """

    prefill_tokens_per_s: float
    prefill_s: float
    decode_tokens: float
    decode_per_s: float
    input_tokens: float

    def prefill_share(self) -> float:
        """Share of instances that should prefill, so that both phases take the same rate of requests."""
        per_s = self.prefill_tokens_per_s / self.input_tokens
        return self.decode_per_s / (per_s + self.decode_per_s)


def capacity_of(scenario: Scenario, pair: Pair) -> InstanceCapacity:
    """InstanceCapacity of an LLM's instances under the tightest targets.

    The decode batch is the largest, of requests half done, that memory, the batch limit and the ITL target
    allow, and that can be kept up by the KV caches that come over the instance's link from other machines:
    long prompts with short answers fill the link long before the memory.

    Raises:
        PolicyError: there is no history of requests.
    """
    inputs, outputs = history(scenario)
    mean_input, mean_output = float(np.mean(inputs)), float(np.mean(outputs))
    prefill, decode = (scenario.fleet.pools[p] for p in (pair.prefill, pair.decode))
    model, context = pool_times(scenario, decode), mean_input + mean_output / 2
    itl_s = min(c.itl_s for c in scenario.classes)
    topology, memory = cluster_topology(scenario), pool_tables(scenario, decode).kv_capacity_tokens
    slot = sum(pool.max_instances for pool in scenario.fleet.pools[: pair.decode])
    per_request = mean_input * llm_card(decode.llm).kv_bytes_per_token
    most_per_s = topology.in_bytes_per_s(slot) / per_request

    def kept_up(batch: int) -> bool:
        seconds = model.decode_s(batch, batch * context)
        return seconds <= itl_s and batch / (mean_output * seconds) <= most_per_s

    high = max(1, min(decode.batch_limit, int(memory / context)))
    batch = 1
    while batch < high and kept_up(batch + 1):
        batch += 1
    seconds = model.decode_s(batch, batch * context)
    # Besides those that decode there are those on their way.
    coming = batch / (mean_output * seconds) / most_per_s * mean_input
    return InstanceCapacity(
        prefill_tokens_per_s=prefill_tokens_per_s(pool_times(scenario, prefill)),
        prefill_s=pool_times(scenario, prefill).prefill_s(mean_input),
        decode_tokens=min(float(memory), batch * context + coming),
        decode_per_s=batch / (mean_output * seconds),
        input_tokens=mean_input,
    )


@dataclass
class Monitor:
    """Loads as they change.

    Attributes:
        window_s: of the tokens per second.
    """

    window_s: float
    _arrived: deque[tuple[float, float, float]] = field(default_factory=deque, repr=False)

    def tokens_per_s(self, view: ClusterView, under_way: RequestsUnderWay) -> float:
        """Prompt tokens per second that are to be prefilled; to be called once per decision.

        Those that have come in the window, and those that came before and wait still.
        """
        window = view.window
        self._arrived.append((view.time_s, window.length_s, float(window.input_tokens.sum())))
        while self._arrived[0][0] <= view.time_s - self.window_s + 1e-9:
            self._arrived.popleft()
        seconds = sum(length for _, length, _ in self._arrived)
        if seconds <= 0:
            return 0.0
        before = under_way.arrival_s < view.time_s - seconds
        late = waits_for_prefill(under_way) & before
        tokens = sum(tokens for *_, tokens in self._arrived)
        return (tokens + float(under_way.input_tokens[late].sum())) / seconds


class Repairs:
    """Which instances are in repair, from what the cluster shows at each decision of an episode.

    One that is `ACQUIRING` has been ordered, or has failed: then it has failed more often than when it was
    last seen in another state.
    """

    def __init__(self) -> None:
        self._before: NDArray[np.int64] | None = None

    def look(self, instances: NDArray[Any]) -> NDArray[np.bool_]:
        """(I,) whether each is in repair; to be called at every decision.

        Args:
            instances: INSTANCE_DTYPE of all slots.
        """
        failures = instances["failures"].astype(np.int64)
        acquiring = instances["state"] == InstanceState.ACQUIRING
        before = np.zeros_like(failures) if self._before is None else self._before
        self._before = np.where(acquiring, before, failures)
        return acquiring & (failures > self._before)


def waits_for_prefill(under_way: RequestsUnderWay) -> NDArray[np.bool_]:
    """(n,) who waits for its first token, wherever."""
    return np.isin(under_way.state, _TO_PREFILL) & (under_way.emitted_tokens == 0)


def waiting_tokens(under_way: RequestsUnderWay) -> float:
    """Prompt tokens that wait to be prefilled, wherever."""
    return float(under_way.input_tokens[waits_for_prefill(under_way)].sum())


def waits_for_decode(under_way: RequestsUnderWay) -> NDArray[np.bool_]:
    """(n,) whose KV cache waits in a prefill instance for a decode instance's memory."""
    return (under_way.state == RequestState.HANDOVER) & under_way.movable


def kv_tokens(
    instances: NDArray[Any], decode: NDArray[np.int64], under_way: RequestsUnderWay
) -> float:
    """KV tokens of decode instances (by number), used and waited for."""
    waits = waits_for_decode(under_way)
    waited = under_way.input_tokens[waits] + under_way.emitted_tokens[waits]
    return float(instances["kv_tokens"][decode].sum() + waited.sum())


def spread(
    instances: NDArray[Any],
    decode: NDArray[np.int64],
    under_way: RequestsUnderWay,
    most_tokens: float,
) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """Requests that wait at full decode instances, and the instances with room that they go to (ours).

    A request that has been prefilled stays in the queue of one decode instance, however many are added,
    and its KV cache in the memory of its prefill instance, which cannot stop before. The oldest go first,
    each to where there is most room, until one does not fit.

    Args:
        instances: INSTANCE_DTYPE of all slots.
        decode: slots of decode instances.
        under_way: requests.
        most_tokens: KV tokens of a decode instance.

    Returns:
        Numbers of requests and of instances, for `Command.assign`; None: nobody goes.
    """
    waits = np.flatnonzero(waits_for_decode(under_way))
    rows = instances[decode]
    free = (rows["state"] == InstanceState.ACTIVE) & (rows["waiting"] == 0)
    if not len(waits) or not free.any():
        return None
    room = dict(zip(decode[free].tolist(), most_tokens - rows["kv_tokens"][free], strict=True))
    order = waits[np.lexsort((under_way.request_id[waits], under_way.arrival_s[waits]))]
    tokens = under_way.input_tokens[order] + under_way.emitted_tokens[order]
    who, where = [], []
    for request, size in zip(under_way.request_id[order].tolist(), tokens.tolist(), strict=True):
        to = max(room, key=lambda i: (room[i], -i))
        if size > room[to]:
            break
        room[to] -= size
        who.append(request)
        where.append(to)
    return (np.array(who), np.array(where)) if who else None
