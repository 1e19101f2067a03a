"""Observed requests, sent once more to a simulated server of one instance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llmscale_env.calibrate.observed import Floats, Ints, Observed, ObservedError, busy_periods
from llmscale_env.cluster.cards import GpuCard
from llmscale_env.cluster.iteration_model import PS_PER_S, IterationTimeModel
from llmscale_env.sim.engine import make_engine
from llmscale_env.sim.spec import ClusterSpec, PoolSpec, ProfileSpec, RouterKind, RouteSpec, V1Spec
from llmscale_env.workload.requests import RequestTable

BLOCK_TOKENS = 16
"""Of a block of vLLM's KV cache, by default."""

LATEST_PS = 2**61
"""When a replay is over (27 days): after everything that `MOST_SECONDS` allows."""


@dataclass(frozen=True)
class Server:
    """Settings of the server that was observed, by vLLM's names.

    Attributes:
        max_num_batched_tokens: token budget of a step.
        max_num_seqs: requests that run at once.
        kv_tokens: tokens of KV cache, as the server's log says.
        async_scheduling: a step is composed while the one before runs; on by default in vLLM 0.26,
            off in 0.11.
        enable_prefix_caching: a preempted request finds those of its blocks again that are still there; on
            by default. What prompts share no file says, so nothing else is found.
    """

    max_num_batched_tokens: int = 8192
    max_num_seqs: int = 256
    kv_tokens: int = 2**31 - 1
    async_scheduling: bool = True
    enable_prefix_caching: bool = True

    @classmethod
    def of_gpu(cls, gpu: GpuCard) -> Server:
        """The defaults of vLLM's server on a GPU."""
        return cls(*gpu.vllm_batch_defaults)


@dataclass(frozen=True)
class FrontEnd:
    """What lies between the client and the engine: HTTP, tokenizer, queues between processes.

    Requests pass it one after the other, each for `per_token_s` times its prompt; all take `delay_s` more.

    Attributes:
        delay_s: seconds that every request takes, whatever else is under way.
        per_token_s: seconds per prompt token, one request at a time.
    """

    delay_s: float = 0.0
    per_token_s: float = 0.0

    def passed_s(self, sent_s: Floats, input_tokens: Floats) -> Floats:
        """(n,) when requests reach the engine; `sent_s` ascends."""
        service = self.per_token_s * input_tokens
        until = np.cumsum(service)
        done: Floats = np.maximum.accumulate(sent_s - (until - service)) + until + self.delay_s
        return done


@dataclass(frozen=True)
class Replayed:
    """What the simulated client sees.

    Attributes:
        ttft_s, tpot_s, e2e_s: (n,) as in `Observed`.
        admitted_s, finished_s: (n,) when each joined the running batch and left it.
    """

    ttft_s: Floats
    tpot_s: Floats
    e2e_s: Floats
    admitted_s: Floats
    finished_s: Floats

    def largest_batch(self) -> Ints:
        """(n,) the most requests that run at once while each of them runs."""
        order = np.argsort(self.admitted_s, kind="stable")
        begin, end = self.admitted_s[order], self.finished_s[order]
        left = np.searchsorted(np.sort(end), begin, side="right")
        running = np.arange(1, len(order) + 1) - left
        until = np.searchsorted(begin, end, side="left")
        largest = np.empty(len(order), dtype=np.int64)
        for k, i in enumerate(order):
            largest[i] = running[k : max(until[k], k + 1)].max()
        return largest


class Replay:
    """Observed requests, to be replayed with many iteration times.

    Where the observed server had become empty before a request was sent, the simulated one is empty as well.
    A client that sends one request after the other would otherwise meet its own last one in every simulation
    that is a little too slow.

    Raises:
        ObservedError: a request does not fit the KV cache.
    """

    def __init__(self, observed: Observed, server: Server) -> None:
        held = observed.input_tokens + observed.output_tokens
        if held.max() + BLOCK_TOKENS > server.kv_tokens:
            raise ObservedError(
                f"{observed.name}: a request of {held.max()} tokens does not fit "
                f"kv_tokens = {server.kv_tokens}"
            )
        self.observed, self.server = observed, server
        self._sent_s = _with_pauses(observed)

    def run(self, model: IterationTimeModel, front: FrontEnd) -> Replayed:
        """Latencies with these iteration times; an instance of vLLM's V1 engine."""
        seen = self.observed
        arrival_s = front.passed_s(self._sent_s, seen.input_tokens.astype(np.float64))
        arrival_ps = np.rint(arrival_s * PS_PER_S).astype(np.int64)
        zeros = np.zeros(len(seen), dtype=np.int16)
        given, made = (n.astype(np.int32) for n in (seen.input_tokens, seen.output_tokens))
        engine = make_engine(server_spec(model, self.server))
        engine.reset(
            0,
            RequestTable(
                arrival_ps=arrival_ps,
                llm=zeros,
                region=zeros,
                slo_class=zeros,
                input_tokens=given,
                output_tokens=made,
                predicted_output_tokens=made,
            ),
        )
        engine.advance(0, LATEST_PS)
        rows = engine.results(0)
        admitted_s, first_s, last_s = (
            rows[f"{what}_ps"] / PS_PER_S for what in ("admitted", "first_token", "finished")
        )
        after = np.where(seen.output_tokens > 1, seen.output_tokens - 1, np.nan)
        return Replayed(
            ttft_s=first_s - self._sent_s,
            tpot_s=(last_s - first_s) / after,
            e2e_s=last_s - self._sent_s,
            admitted_s=admitted_s,
            finished_s=last_s,
        )


def server_spec(model: IterationTimeModel, server: Server) -> ClusterSpec:
    """A cluster of one instance with a server's settings.

    The host's own time is in the iteration times, which are fitted to whole steps.
    """
    batch = min(server.max_num_seqs, server.max_num_batched_tokens)
    blocks = server.kv_tokens // BLOCK_TOKENS
    profile = model.profile(
        max_batch=batch, kv_capacity_tokens=blocks * BLOCK_TOKENS, swap_bytes_per_s=1e9
    )
    pool = PoolSpec(
        llm=0,
        profile=0,
        n_slots=1,
        initial_active=1,
        batch_limit=batch,
        chunk_tokens=server.max_num_batched_tokens,
        v1=V1Spec(
            block_tokens=BLOCK_TOKENS,
            asynchronous=server.async_scheduling,
            prefix_cache=server.enable_prefix_caching,
        ),
    )
    return ClusterSpec(
        profiles=(ProfileSpec(**vars(profile)),),
        pools=(pool,),
        routes=((RouteSpec(RouterKind.JSQ_REQUESTS, (0,)),),),
    )


def _with_pauses(observed: Observed) -> Floats:
    """(n,) times of sending, with so much idle time between busy periods that none runs into the next."""
    period = busy_periods(observed)
    n = int(period[-1]) + 1
    sent = observed.arrival_s
    ends = np.where(np.isnan(observed.e2e_s), sent, sent + observed.e2e_s)
    start, length = np.full(n, np.inf), np.zeros(n)
    np.minimum.at(start, period, sent)
    np.maximum.at(length, period, ends - start[period])
    # A simulation may take several times as long as the server did.
    begin = np.concatenate([[0.0], np.cumsum(4.0 * length + 10.0)[:-1]])
    shifted: Floats = begin[period] + (sent - start[period])
    return shifted
