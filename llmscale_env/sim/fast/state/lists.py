"""The linked lists of requests: which there are, and in which row of `lists` each one is."""

from __future__ import annotations

from llmscale_env.sim.fast.state.memory import const_of
from llmscale_env.sim.jit import njit


@njit
def preempted_row(S, i):
    """Requests that instance `i` preempted."""
    return const_of(S).row_preempted + i


@njit
def running_row(S, i, evictable):
    """Running requests of instance `i` that are evictable, or that are not; oldest admission first."""
    return const_of(S).row_running + evictable * const_of(S).n_inst + i


@njit
def prefill_row(S, i):
    """Requests that instance `i` prefills."""
    return const_of(S).row_prefilling + i


@njit
def queue_row(S, q):
    """Shared queue `q`."""
    return const_of(S).row_queue + q


@njit
def gateway_row(S, m):
    """Gateway of LLM `m`."""
    return const_of(S).row_gateway + m


@njit
def oldest_row(S, q):
    """Requests of queue `q` that came before all behind them (see `queues`)."""
    return const_of(S).row_oldest + q


@njit
def landed_row(S, i):
    """Requests whose KV has come to instance `i`."""
    return const_of(S).row_landed + i


@njit
def flight_row(S, i):
    """Requests whose KV is on its way to instance `i`."""
    return const_of(S).row_in_flight + i


@njit
def held_row(S, i):
    """Requests whose KV instance `i` holds until it has been copied."""
    return const_of(S).row_held + i


@njit
def ending_row(S, i):
    """Running requests of instance `i` whose last token comes with the step that runs."""
    return const_of(S).row_ending + i


@njit
def decode_gateway_row(S, m):
    """Decode gateway of LLM `m`."""
    return const_of(S).row_decode_gateway + m
