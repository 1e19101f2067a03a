"""Optimisations that move the best batch size: prefix caching and speculative decoding.

Chiron (Section 6) runs its LLMs with both and sees its controller settle on smaller batches
(Section 6.3). Here each is a modifier of iteration-time tables with stated parameters, so the
engines know nothing of it. What the modifiers leave out stands in their docstrings.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, field_validator

from llmscale_env.cluster.cards import LlmCard, known_llms, llm_card
from llmscale_env.cluster.iteration_model import IterationTables, IterationTimeModel
from llmscale_env.cluster.iteration_time import NoSuchModelError, iteration_time_model
from llmscale_env.cluster.kv import ACTIVATION_TOKENS, kv_capacity_tokens

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class AverageHits(_Frozen):
    """Prefix caching; `with_average_hits` says what it does. Chiron names no figures: both are ours.

    Attributes:
        hit_share: share of every prompt's tokens whose KV cache is found, in [0, 1).
        memory_share: share of KV memory that cached blocks hold and running requests cannot have,
            in [0, 1).
    """

    hit_share: Annotated[float, Field(ge=0, lt=1)] = 0.5
    memory_share: Annotated[float, Field(ge=0, lt=1)] = 0.2


class SpeculativeConfig(_Frozen):
    """Speculative decoding; `with_speculation` says what it does.

    Attributes:
        draft_llm: card of the draft; it runs on the target's GPUs at the target's degree. Llama 3.1
            8B drafts for the 70B in Chiron (Section 6). The draft shares the target's vocabulary
            and has fewer weights.
        draft_tokens: tokens that the draft proposes per round (gamma in Leviathan et al. 2023); the
            default is ours.
        acceptance: chance that a proposed token is accepted, given those before it (alpha there); the
            default is ours, since it belongs to the pair of LLMs and the text.
    """

    draft_llm: str = "llama-3.1-8b"
    draft_tokens: Annotated[int, Field(ge=1, le=64)] = 4
    acceptance: Annotated[float, Field(ge=0, le=1)] = 0.7

    @field_validator("draft_llm")
    @classmethod
    def _known_llm(cls, value: str) -> str:
        return llm_card(value).name

    @property
    def tokens_per_round(self) -> float:
        """Expected tokens of a round (see `tokens_per_round`)."""
        return tokens_per_round(self.draft_tokens, self.acceptance)


def tokens_per_round(draft_tokens: int, acceptance: float) -> float:
    """Expected tokens that one round emits, Leviathan et al. 2023, Eq. 1.

    `(1 - a ** (k + 1)) / (1 - a)`: the accepted run of `k` proposed tokens, and the one that the
    target's own verification adds; written as its sum, which also holds at `a = 1`.

    Raises:
        ValueError: `draft_tokens` below 1 or `acceptance` outside [0, 1].
    """
    if draft_tokens < 1:
        raise ValueError(f"draft_tokens = {draft_tokens}: must be at least 1")
    if not 0.0 <= acceptance <= 1.0:
        raise ValueError(f"acceptance = {acceptance}: must be in [0, 1]")
    return float(sum(acceptance**i for i in range(draft_tokens + 1)))


def check_draft(llm: str | LlmCard, tp: int, config: SpeculativeConfig) -> LlmCard:
    """The card of the draft, if it can draft for `llm` on `tp` GPUs.

    Raises:
        ValueError: another vocabulary, not fewer weights, or heads that `tp` does not divide; the
            message lists the LLMs that could.
    """
    target, draft = llm_card(llm), llm_card(config.draft_llm)
    reasons = []
    if draft.vocab != target.vocab:
        reasons.append(f"has {draft.vocab} words, {target.name} {target.vocab}")
    if draft.parameters >= target.parameters:
        reasons.append(f"does not have fewer weights than {target.name}")
    if not draft.fits_tp(tp):
        reasons.append(f"cannot be cut for tp = {tp}")
    if reasons:
        cards = [llm_card(name) for name in known_llms()]
        able = [
            c.name
            for c in cards
            if c.vocab == target.vocab and c.parameters < target.parameters and c.fits_tp(tp)
        ]
        allowed = ", ".join(able) or "none of the known LLMs; register_llm adds one"
        raise ValueError(
            f"speculative.draft_llm = {config.draft_llm!r}: {', '.join(reasons)}; allowed: {allowed}"
        )
    return draft


def draft_model(
    target: IterationTimeModel, config: SpeculativeConfig, data: str | Path | None = None
) -> IterationTimeModel:
    """Iteration times of the draft on the target's GPUs, at its degree.

    Of the target's kind if there are such. Otherwise a composed target gets the roofline, which is
    calibrated on composed times, and any other what `iteration_time_model` chooses.

    Raises:
        ValueError: see `check_draft`.
    """
    draft = check_draft(target.llm, target.tp, config)
    try:
        return iteration_time_model(draft, target.gpu, target.tp, target.kind, data=data)
    except NoSuchModelError:
        kind = "roofline" if target.kind == "composed" else None
        return iteration_time_model(draft, target.gpu, target.tp, kind, data=data)


def optimised_tables(
    model: IterationTimeModel,
    *,
    max_batch: int = 4096,
    memory_fraction: float = 0.9,
    average_hits: AverageHits | None = None,
    speculative: SpeculativeConfig | None = None,
    chunk_tokens: int = 0,
    data: str | Path | None = None,
) -> IterationTables:
    """`model.profile`, with the optimisations that are given.

    Speculation first, since a cache also holds the draft's KV; then the cache.

    Args:
        model: iteration times of the target.
        max_batch, memory_fraction: as in `IterationTimeModel.profile`.
        average_hits, speculative: None: without.
        chunk_tokens: token budget of a chunked iteration (see `with_average_hits`); 0: prefill first.
        data: data file in which the draft's times are looked up first.

    Raises:
        DoesNotFitError: weights (and the draft's) do not fit.
        ValueError: an argument is out of range, or the draft cannot draft (`check_draft`).
    """
    tables = model.profile(max_batch=max_batch, memory_fraction=memory_fraction)
    if speculative is not None:
        draft = draft_model(model, speculative, data)
        capacity = kv_capacity_tokens(
            model.llm, model.gpu, model.tp, memory_fraction=memory_fraction, draft=draft.llm
        )
        drafting = draft.profile(max_batch=max_batch, kv_capacity_tokens=capacity)
        tables = with_speculation(
            tables, drafting, speculative, kv_capacity_tokens=capacity, chunk_tokens=chunk_tokens
        )
    if average_hits is not None:
        tables = with_average_hits(tables, average_hits, chunk_tokens=chunk_tokens)
    return tables


def with_average_hits(
    tables: IterationTables, config: AverageHits, *, chunk_tokens: int = 0
) -> IterationTables:
    """Tables of an instance that finds a share `h` of every prompt in its cache.

    - A prompt of `n` tokens computes `(1 - h) * n`. Its line is that of the tables at as many new
      tokens: knots move out by `1 / (1 - h)`, slopes shrink by `1 - h`.
    - Its attention still goes over what is cached: `new * (2 * cached + new) = n ** 2 * (1 - h ** 2)`,
      so the pair coefficients shrink by `1 - h ** 2`. Summed over a prompt's chunks that is the same,
      however it is cut.
    - KV memory falls by `memory_share`. This is how Chiron explains its smaller batches: "a larger KV
      cache is loaded at the beginning leading to higher memory utilization" (Section 6.3).
    - Decode iterations stay as they are, and so does the time per chunk.

    In a chunked iteration the decoding requests' own tokens are not cached, but the engines look up
    one line at all tokens, `D + T`. The wanted line is at `D + (1 - h) * T`; the difference goes to
    `mixed_base_ps[D]` such that an iteration that fills its budget, `D + T = chunk_tokens`, is exact.
    A smaller one is exact where the line is straight in between, and too long (never too short)
    where it is convex.

    Left out: hits vary between requests; a request is charged KV memory for its whole context, as
    if hits were copies (shared blocks would need less); the engine's token budgets count cached
    tokens; a preempted request finds the same share again; blocks are never evicted from the cache.

    Args:
        tables: without a cache.
        config: its parameters; with both at 0 the tables come back as they are.
        chunk_tokens: budget at which chunked iterations are exact; 0: 4096, where it is of no use.

    Raises:
        ValueError: a budget below 0, or no KV memory is left.
    """
    hit, new = config.hit_share, 1.0 - config.hit_share
    capacity = int(tables.kv_capacity_tokens * (1.0 - config.memory_share))
    if capacity < 1:
        raise ValueError(
            f"average_hits.memory_share = {config.memory_share}: leaves none of "
            f"{tables.kv_capacity_tokens} KV tokens"
        )
    budget = _budget(chunk_tokens)
    tables = replace(tables, kv_capacity_tokens=capacity)
    if hit == 0.0:
        return tables
    prefill, mixed = _lines(tables)
    shorter = _scaled(prefill, new)
    mixed_shorter = _scaled(mixed, new)
    decoding = np.minimum(np.arange(len(tables.mixed_base_ps)), budget)
    full = mixed.at(decoding + new * (budget - decoding)) + tables.mixed_base_ps
    left = 1.0 - hit * hit
    return replace(
        tables,
        prefill_knot_tokens=shorter.tokens,
        prefill_knot_ps=shorter.ps,
        prefill_slope_ps=shorter.slope_ps,
        prefill_pair_ps=round(left * tables.prefill_pair_ps),
        mixed_knot_tokens=mixed_shorter.tokens,
        mixed_knot_ps=mixed_shorter.ps,
        mixed_slope_ps=mixed_shorter.slope_ps,
        mixed_base_ps=_int(full - mixed_shorter.at(budget)),
        mixed_pair_ps=round(left * tables.mixed_pair_ps),
    )


def with_speculation(
    tables: IterationTables,
    draft: IterationTables,
    config: SpeculativeConfig,
    *,
    kv_capacity_tokens: int,
    chunk_tokens: int = 0,
) -> IterationTables:
    """Tables of an instance that decodes speculatively (Leviathan et al. 2023, Algorithm 1).

    A round of `b` requests with `c` tokens of context emits `E = tokens_per_round(k, a)` tokens per
    request. The engines emit one per iteration, so an iteration takes `round / E`. A round is

    - `k` decode iterations of the draft, at contexts `c, c + b, ...`:
      `k * draft_base[b] + draft_per_token[b] * (k * c + b * k * (k - 1) / 2)`;
    - one iteration of the target over `B = b * (k + 1)` tokens: `k + 1` per request. All but attention
      is that of a chunked iteration of as many tokens, `b` of them decoding: `line(B) + mixed_base[b]`,
      at least a decode iteration's `decode_base[b]`: bound by memory for small `B`, by compute
      for large. Per request it is made not to rise with `b`, as decode tables are (docs/calibration.md);
    - its attention: the KV cache is read once for all `k + 1` tokens of a request, or its scores take
      longer: `max(per_token[b], 2 * (k + 1) * pair) * c`, and `pair * b * (k + 1) ** 2` among the new
      tokens (`pair` is per unit of `chunk * (2 * cached + chunk)`).

    A prefill iteration adds the draft's. A chunked one is the same part of a round: `1 / E` of one
    that carries `E` times the prompt tokens, `k + 1` tokens of each of `D` decoding requests, the
    draft's first proposal beside its prompt tokens and `k - 1` more draft decodes. With `D = 0` there
    is no round: target and draft prefill the chunk. The engines look up one line at `D + T`; as with
    the prefix cache, `mixed_base_ps` makes iterations exact that fill their budget (held at 0 below,
    which takes an acceptance near 1 and a draft nearly as slow as its target). Moving KV to the host
    and back moves the draft's too.

    Left out: a round's tokens come at once, so a real stream has gaps of a whole round and none in
    between: mean ITL holds, the largest of a request comes out `E` times too small; acceptance varies
    between requests; KV of rejected tokens (at most `k + 1` per running request) is not charged;
    sampling and comparing probabilities take no time, nor does anything else that the tables leave
    out (composed times and rooflines have no CPU overhead, which a round pays `k + 1` times).

    Args:
        tables: the target's.
        draft: the draft's, of the same GPUs and as many batch sizes.
        config: parameters.
        kv_capacity_tokens: KV tokens of both that fit beside the weights of both
            (`cluster.kv.kv_capacity_tokens` with `draft`).
        chunk_tokens: as in `with_average_hits`.

    Raises:
        ValueError: tables of different length, no capacity, or a budget below 0.
    """
    if len(draft.decode_base_ps) != len(tables.decode_base_ps):
        raise ValueError(
            f"draft: tables up to a batch of {len(draft.decode_base_ps) - 1}, the target's go to "
            f"{len(tables.decode_base_ps) - 1}; they must be alike"
        )
    if kv_capacity_tokens < 1:
        raise ValueError(f"kv_capacity_tokens = {kv_capacity_tokens}: must be at least 1")
    k, emitted = config.draft_tokens, config.tokens_per_round
    prefill, mixed = _lines(tables)
    draft_prefill, draft_mixed = _lines(draft)
    both = _sum(prefill, draft_prefill)
    mixed_both = _sum(_scaled(mixed, emitted, emitted), _scaled(draft_mixed, emitted, emitted))

    b = np.arange(len(tables.decode_base_ps), dtype=np.float64)
    later = draft.decode_per_token_ps * b * (k * (k - 1) / 2)
    verified = verification_base_ps(tables, k) + tables.prefill_pair_ps * b * (k + 1) ** 2
    attention = np.maximum(tables.decode_per_token_ps, 2 * (k + 1) * tables.prefill_pair_ps)
    decode_base = _per_request_not_rising(k * draft.decode_base_ps + later + verified) / emitted
    per_token = (k * draft.decode_per_token_ps + attention) / emitted

    budget = _budget(chunk_tokens)
    decoding = np.minimum(b, budget)
    prompt = emitted * (budget - decoding)
    full = (
        mixed.at(decoding * (k + 1) + prompt)
        + tables.mixed_base_ps
        + tables.mixed_pair_ps * b * (k + 1) ** 2
        + draft_mixed.at(decoding + prompt)
        + draft.mixed_base_ps
        + (k - 1) * draft.decode_base_ps
        + later
    ) / emitted
    # No decoding request, no round: the chunk takes its own time, and so does its constant.
    per_chunk = tables.mixed_chunk_ps + draft.mixed_chunk_ps
    full[0] = (
        mixed.at(budget)
        + tables.mixed_base_ps[0]
        + draft_mixed.at(budget)
        + draft.mixed_base_ps[0]
        + per_chunk * (1 - 1 / emitted)
    )
    mixed_attention = np.maximum(tables.mixed_per_token_ps, 2 * (k + 1) * tables.mixed_pair_ps)
    mixed_draft = draft.mixed_per_token_ps + (k - 1) * draft.decode_per_token_ps
    return replace(
        tables,
        decode_base_ps=np.maximum(_int(decode_base), 1),
        decode_per_token_ps=_int(per_token),
        prefill_knot_tokens=both.tokens,
        prefill_knot_ps=both.ps,
        prefill_slope_ps=both.slope_ps,
        prefill_pair_ps=tables.prefill_pair_ps + draft.prefill_pair_ps,
        mixed_knot_tokens=mixed_both.tokens,
        mixed_knot_ps=mixed_both.ps,
        mixed_slope_ps=mixed_both.slope_ps,
        mixed_base_ps=np.maximum(_int(full - mixed_both.at(budget)), 0),
        mixed_per_token_ps=_int((mixed_attention + mixed_draft) / emitted),
        mixed_pair_ps=tables.mixed_pair_ps + draft.mixed_pair_ps,
        mixed_chunk_ps=round(per_chunk / emitted),
        kv_capacity_tokens=int(kv_capacity_tokens),
        swap_out_ps_per_token=tables.swap_out_ps_per_token + draft.swap_out_ps_per_token,
        swap_in_ps_per_token=tables.swap_in_ps_per_token + draft.swap_in_ps_per_token,
    )


def verification_base_ps(tables: IterationTables, draft_tokens: int) -> Floats:
    """(max_batch + 1,) ps of everything but attention when the target verifies `draft_tokens` each.

    See `with_speculation`; index 0 is not used.
    """
    b = np.arange(len(tables.decode_base_ps))
    _, mixed = _lines(tables)
    at_once = mixed.at(b * (draft_tokens + 1)) + tables.mixed_base_ps
    return _per_request_not_rising(np.maximum(tables.decode_base_ps, at_once))


class _Line(NamedTuple):
    """A piecewise linear time over tokens, as the engines evaluate it (docs/engine.md, section 4)."""

    tokens: Ints
    ps: Ints
    slope_ps: Ints

    def at(self, tokens: NDArray[np.floating] | Ints | float) -> Floats:
        """Picoseconds at any number of tokens, also between whole ones."""
        x = np.asarray(tokens, dtype=np.float64)
        k = np.searchsorted(self.tokens, x, side="right") - 1
        seconds: Floats = self.ps[k] + self.slope_ps[k] * (x - self.tokens[k])
        return seconds


def _lines(tables: IterationTables) -> tuple[_Line, _Line]:
    return (
        _Line(tables.prefill_knot_tokens, tables.prefill_knot_ps, tables.prefill_slope_ps),
        _Line(tables.mixed_knot_tokens, tables.mixed_knot_ps, tables.mixed_slope_ps),
    )


def _scaled(line: _Line, per_token: float, rounds: float = 1.0) -> _Line:
    """`line(per_token * x) / rounds`, exact at the nearest whole token of every knot.

    Slopes are rounded down, as those of the tables are: the line never falls at a knot.
    """
    knots = np.unique(np.floor(line.tokens / per_token + 0.5).astype(np.int64))
    values = np.maximum(_int(line.at(knots * per_token) / rounds), 1)
    last = _int(line.slope_ps[-1] * per_token / rounds)
    return _Line(knots, values, np.append(np.diff(values) // np.diff(knots), last))


def _sum(one: _Line, other: _Line) -> _Line:
    """Both lines one after the other, exactly."""
    knots = np.union1d(one.tokens, other.tokens)
    i, j = (np.searchsorted(line.tokens, knots, side="right") - 1 for line in (one, other))
    return _Line(knots, _int(one.at(knots) + other.at(knots)), one.slope_ps[i] + other.slope_ps[j])


def _per_request_not_rising(base_ps: Floats) -> Floats:
    """(n,) lowered where a request of a larger batch would take longer; index 0 stays."""
    b = np.arange(1, len(base_ps))
    lowered = b * np.minimum.accumulate(base_ps[1:] / b)
    return np.append(base_ps[:1].astype(np.float64), lowered)


def _budget(chunk_tokens: int) -> int:
    if chunk_tokens < 0:
        raise ValueError(f"chunk_tokens = {chunk_tokens}: must not be negative")
    return chunk_tokens or ACTIVATION_TOKENS


def _int(ps: Floats | float) -> Ints:
    return np.rint(np.asarray(ps, dtype=np.float64)).astype(np.int64)
