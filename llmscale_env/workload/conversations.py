"""Requests that come in turns: each prompt is the conversation so far and a new message; and system prompts.

Turns come at times that are drawn beforehand: an open loop, as a table of requests knows no better. A user
who waits longer for an answer does not write later for it. So a turn may come before the answer to the one
before has ended: what is not computed by then is not found in a prefix cache.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from llmscale_env.workload.config import SystemPromptsConfig, TurnsConfig
from llmscale_env.workload.prefixes import Prefixes

_PS_PER_US = 1_000_000
_MOST_US = 6_000_000_000_000
"""Of a conversation, so that its end has a place among picoseconds of 64 bits."""


class Turns(NamedTuple):
    """When the turns of conversations come, one conversation behind the other.

    Attributes:
        arrival_ps: (n,) in [0, horizon).
        conversation: (n,) number of its conversation, rising.
        lap: (n,) how often it was moved back by a horizon: turns behind the end come at the beginning, as
            those of conversations that began before the episode.
    """

    arrival_ps: NDArray[np.int64]
    conversation: NDArray[np.int64]
    lap: NDArray[np.int64]


def single_turns(arrival_ps: NDArray[np.int64]) -> Turns:
    """Requests that are conversations of one turn."""
    n = len(arrival_ps)
    return Turns(arrival_ps, np.arange(n), np.zeros(n, np.int64))


def draw_turns(
    config: TurnsConfig, start_ps: NDArray[np.int64], horizon_ps: int, rng: np.random.Generator
) -> Turns:
    """Turns of conversations that start at these times (rising, below the horizon).

    Numbers of turns are geometric; gaps are log-normal, in whole microseconds.
    """
    turns = rng.geometric(1 / config.mean, len(start_ps))
    conversation = np.repeat(np.arange(len(start_ps)), turns)
    opens = np.cumsum(turns) - turns
    mu = np.log(config.gap_mean_s * 1e6) - config.gap_sigma**2 / 2
    z = rng.standard_normal(len(conversation))
    gap_us = np.rint(np.exp(mu + config.gap_sigma * z)).clip(1, _MOST_US // 6).astype(np.int64)
    gap_us[opens] = 0
    since_us = np.cumsum(gap_us)
    since_us = np.minimum(since_us - np.repeat(since_us[opens], turns), _MOST_US)
    lap, arrival_ps = np.divmod(start_ps[conversation] + since_us * _PS_PER_US, horizon_ps)
    return Turns(arrival_ps, conversation, lap)


class Prompts(NamedTuple):
    """What the turns of conversations ask.

    Attributes:
        input_tokens, output_tokens: (n,) of the whole prompts, and of the answers.
        prefixes: the n requests in the order of `order`.
        order: (n,) the turns by arrival.
    """

    input_tokens: NDArray[np.int32]
    output_tokens: NDArray[np.int32]
    prefixes: Prefixes
    order: NDArray[np.intp]


def draw_prompts(
    turns: Turns,
    message_tokens: NDArray[np.int32],
    output_tokens: NDArray[np.int32],
    max_context_tokens: int,
    system: SystemPromptsConfig | None,
    rng: np.random.Generator,
) -> Prompts:
    """Prompts of system prompt, history and message.

    A prompt and its answer are no longer than `max_context_tokens`: turns are left out of the history, the
    oldest first, as many as it takes. The system prompt stays. Where turns are newly left out, a prompt
    begins like the one before for the length of the system prompt only.

    Args:
        turns: when they come.
        message_tokens, output_tokens: (n,) of each turn's message and answer.
        max_context_tokens: at least 2 more than the system prompt's tokens.
        system: None: prompts begin with the first message.
        rng: draws the conversations' system prompts.
    """
    begin = 0 if system is None else system.tokens
    room = max_context_tokens - begin
    outputs = np.minimum(output_tokens, room - 1).astype(np.int64)
    messages = np.minimum(message_tokens, room - outputs)
    # Tokens of messages and answers before each turn, all conversations in a row.
    after = np.cumsum(messages + outputs)
    before = after - messages - outputs
    n = len(after)
    place = np.arange(n)
    opens = np.searchsorted(turns.conversation, turns.conversation)
    oldest = np.maximum(np.searchsorted(before, after - room), opens)
    inputs = begin + before - before[oldest] + messages
    goes_on = (place > opens) & (oldest == _one_before(oldest))
    goes_on &= turns.lap == _one_before(turns.lap)
    order = np.argsort(turns.arrival_ps, kind="stable")
    row_of = np.empty(n, np.int64)
    row_of[order] = place
    # A turn's spans: the system prompt, and the turns before it that it goes on from, the earliest first.
    has_prompt = int(system is not None)
    prompt = np.zeros(n, np.int64)
    if system is not None:
        prompt = _popular(system, int(turns.conversation[-1]) + 1 if n else 0, rng)[
            turns.conversation
        ]
    earliest = np.maximum.accumulate(np.where(goes_on, 0, place))
    counts = (has_prompt + place - earliest)[order]
    first = np.append(0, np.cumsum(counts))
    row = np.repeat(place, counts)
    number = np.arange(first[-1]) - first[row] - has_prompt
    of = order[row]
    owner = earliest[of] + np.maximum(number, 0)
    prefixes = Prefixes(
        place,
        first,
        np.where(number < 0, -2 - prompt[of], row_of[owner]),
        np.where(number < 0, begin, (inputs + outputs)[owner]).astype(np.int32),
    )
    return Prompts(inputs.astype(np.int32), outputs.astype(np.int32), prefixes, order)


def _one_before(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """(n,) the value one place before each."""
    return np.append(0, values)[:-1]


def _popular(system: SystemPromptsConfig, n: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """(n,) numbers of system prompts, by Zipf's law."""
    weights = np.arange(1, system.n + 1, dtype=np.float64) ** -system.zipf
    edges = np.round(np.cumsum(weights) / weights.sum(), 9)
    return np.minimum(np.searchsorted(edges, rng.random(n), side="right"), system.n - 1)
