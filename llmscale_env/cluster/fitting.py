"""Fitting iteration-time models to measured iterations, and saying how good the fit is.

Three steps, each deterministic: decode tables per batch size, the prefill line with its attention
term, the unified mixed form. The errors come from whole configurations that the fit has not seen.
scipy is imported where it is used, since only `python -m llmscale_env.calibrate` needs it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from llmscale_env.cluster.cards import gpu_card, llm_card
from llmscale_env.cluster.iteration_model import FitError, IterationTimeModel, derive_mixed
from llmscale_env.cluster.measurements import PARTS, Floats, Ints, Measurements

FOLDS = 10
BLOCK_TOKENS = 64
"""Matrix kernels of composed times work in blocks of 64 tokens: their time jumps behind one."""

SLOPE_ROUNDING = 1e-4
"""Relative rise of the per-token time between tiles that the rounding of composed times explains."""

START_SHARE = 0.06
USUAL_CACHED_TOKENS = 1024
USUAL_COUNTS = 25.0
"""The mixed form has no term for what a chunk behind a cache costs from its first cached token on.
Where that is more than `START_SHARE` of an iteration, chunks behind up to `USUAL_CACHED_TOKENS` count
`USUAL_COUNTS` times: the second and third chunks of a prompt, which are most chunks in serving."""

LINE_TOLERANCE = 0.015
"""A hinge is set where the line through its neighbours is off by more than this fraction."""


class FitDataError(ValueError):
    """The measurements cannot be fitted; the message says what is missing."""


def fit(data: Measurements, siblings: tuple[Measurements, ...] = ()) -> IterationTimeModel:
    """Fit all rows, and report the errors on held-out configurations.

    Args:
        data: the rows to fit.
        siblings: the same LLM measured the same way on other GPUs or degrees; they lend the shape
            of the prefill line between the points of `data` (see `borrowed_points`).

    Raises:
        FitDataError: no decode or no prefill rows.
    """
    used = data.only(data.fitted)
    siblings = tuple(m.only(m.fitted) for m in siblings)
    model = _fit_once(used, siblings)
    errors = all_held_out_errors(used, siblings)
    compared = data.only(~data.fitted)
    if len(compared.seconds):
        off = np.abs(predict(model, compared) / compared.seconds - 1)
        errors["not_fitted"] = relative_error(0, off)
    decode, prefill = used.of("decode"), used.of("prefill")
    context = decode.context_tokens / np.maximum(decode.decode_requests, 1)
    scored = decode.scored
    return replace(
        model,
        errors=errors,
        max_batch=int(decode.decode_requests[scored].max()),
        max_context_tokens=int(context[scored].max()),
        max_prefill_tokens=int(prefill.total_tokens[prefill.scored].max()),
    )


def predict(model: IterationTimeModel, data: Measurements) -> Floats:
    """(n,) seconds that the model gives for each row."""
    most = int(data.decode_requests.max(initial=0))
    base, per_token = model.decode_tables(max(most, 1))
    m_base, m_per_token = model.mixed_tables(max(most, 1))
    d, c, w, total = data.decode_requests, data.context_tokens, data.pair_sum, data.total_tokens

    def line(knots: tuple[int, ...], values: tuple[float, ...], slope: float) -> Floats:
        inside: Floats = np.interp(total, knots, values)
        return inside + slope * np.maximum(total - knots[-1], 0)

    decode = base[d] + per_token[d] * c
    prefill = (
        line(model.prefill_knot_tokens, model.prefill_knot_s, model.prefill_slope_s)
        + model.prefill_pair_s * w
    )
    mixed = (
        line(model.mixed_knot_tokens, model.mixed_knot_s, model.mixed_slope_s)
        + m_base[d]
        + m_per_token[d] * c
        + model.mixed_pair_s * w
        + model.mixed_chunk_s * data.chunks
    )
    chosen: Floats = np.select([data.part == 0, data.part == 1], [decode, prefill], mixed)
    return chosen


def all_held_out_errors(
    data: Measurements, siblings: tuple[Measurements, ...] = ()
) -> dict[str, FitError]:
    """The held-out errors of all parts, and those of harder tests.

    Returns:
        "decode", "prefill", "mixed" as `held_out_errors` has them, and

        - "decode_tiles", where kernels see tokens in tiles: decode with whole tiles of batch sizes
          held out ("decode" holds out a batch size, whose tile may be known from its neighbours);
        - "prefill_alone", elsewhere: prefill with all ways to make up a number of tokens held out
          together, and nothing lent by siblings;
        - "mixed_derived", where mixed was measured: what `derive_mixed` would give without.
    """
    errors = held_out_errors(data, siblings)
    prefill = data.part == PARTS.index("prefill")
    two = data.part < PARTS.index("mixed")
    if data.tile_tokens > 1:
        tile = -(-data.decode_requests // data.tile_tokens)
        group = np.where(data.part == 0, -1 - tile, data.group)
        whole = replace(data, group=group, scored=data.scored & (data.part == 0)).only(two)
        named = {"decode_tiles": held_out_errors(whole).get("decode")}
    else:
        group = np.where(prefill, -1 - data.total_tokens, data.group)
        whole = replace(data, group=group, scored=data.scored & prefill).only(two)
        named = {"prefill_alone": held_out_errors(whole).get("prefill")}
    errors |= {name: error for name, error in named.items() if error is not None}
    if "mixed" in errors:
        rows = data.of("mixed")
        derived = predict(_fit_once(data.only(two)), rows)
        errors["mixed_derived"] = relative_error(0, np.abs(derived / rows.seconds - 1))
    return errors


def held_out_errors(
    data: Measurements, siblings: tuple[Measurements, ...] = ()
) -> dict[str, FitError]:
    """Held-out error of each part that was measured: every configuration is held out once."""
    relative = np.abs(held_out_relative(data, siblings))
    errors = {}
    for part, name in enumerate(PARTS):
        mine = (data.part == part) & data.scored
        held = relative[mine & ~np.isnan(relative)]
        if len(held):
            errors[name] = relative_error(int(mine.sum()), held)
    return errors


def held_out_relative(data: Measurements, siblings: tuple[Measurements, ...] = ()) -> Floats:
    """(n,) relative error of each row, predicted by a fit that has not seen its configuration.

    NaN where a row was not held out. The configurations are dealt in order to `FOLDS` folds (fewer
    if there are fewer); each fold is predicted by a fit on the others. Those with the fewest and the
    most tokens or context of a part stay in every fit: they are the range that the model claims.
    """
    fold = np.full(len(data.seconds), -1)
    folds = 0
    for part in range(len(PARTS)):
        mine = (data.part == part) & data.scored
        groups, first = np.unique(data.group[mine], return_index=True)
        if len(groups) < 4:
            continue
        size = data.total_tokens[mine] + 1e-6 * data.context_tokens[mine]
        order = groups[np.argsort(size[first], kind="stable")]
        ends = {int(data.group[mine][np.argmin(size)]), int(data.group[mine][np.argmax(size)])}
        inner = [g for g in order if int(g) not in ends]
        for index, g in enumerate(inner):
            fold[(data.part == part) & (data.group == g)] = index % FOLDS
        folds = max(folds, min(FOLDS, len(inner)))
    relative = np.full(len(data.seconds), np.nan)
    for k in range(folds):
        out = fold == k
        # A configuration's rows leave all parts together: a prefill of T tokens would otherwise
        # tell the mixed form about a chunked iteration of T tokens.
        train = ~np.isin(data.group, np.unique(data.group[out])) | (fold < 0)
        test = out & data.scored
        predicted = predict(_fit_once(data.only(train), siblings), data.only(test))
        relative[test] = predicted / data.seconds[test] - 1
    return relative


def relative_error(n_fitted: int, held: Floats) -> FitError:
    """Mean and worst of absolute relative errors, rounded for the data file."""
    return FitError(
        n_fitted=n_fitted,
        n_held_out=len(held),
        mean=round(float(held.mean()), 5),
        worst=round(float(held.max()), 5),
    )


def _fit_once(data: Measurements, siblings: tuple[Measurements, ...] = ()) -> IterationTimeModel:
    decode, prefill, mixed = data.of("decode"), data.of("prefill"), data.of("mixed")
    where = f"{data.llm} on {data.gpu} tp {data.tp}"
    if not len(decode.seconds):
        raise FitDataError(f"{where}: no rows of kind 'decode'; at least one is needed")
    if not len(prefill.seconds):
        raise FitDataError(f"{where}: no rows of kind 'prefill'; at least one is needed")
    llm, gpu = llm_card(data.llm), gpu_card(data.gpu)
    # No kernel reads KV faster than memory or computes faster than the peak; a share of a quarter
    # (memory) and a tenth (compute) bounds what noise may make of short measurements.
    fastest_context = llm.kv_bytes_per_token_per_gpu(data.tp) / gpu.memory_bytes_per_s
    fastest_pair = llm.attention_flops_per_pair(data.tp) / gpu.flops_per_s
    batch, base, per_token = fit_decode(decode, fastest_context, 4 * fastest_context)
    pair, knots, line, slope = fit_prefill(
        prefill, fastest_pair, 10 * fastest_pair, base[0], tuple(m.of("prefill") for m in siblings)
    )
    common = {
        "llm": data.llm,
        "gpu": data.gpu,
        "tp": data.tp,
        "kind": data.kind,
        "source": data.source,
        "notes": data.notes,
        "decode_batch": batch,
        "decode_base_s": base,
        "decode_per_token_s": per_token,
        "prefill_knot_tokens": knots,
        "prefill_knot_s": line,
        "prefill_slope_s": slope,
        "prefill_pair_s": pair,
    }
    if len(np.unique(mixed.group)) < 8:
        m_batch, m_base, m_per_token = derive_mixed(batch, base, per_token, knots, line, slope)
        form = {
            "mixed_knot_tokens": knots,
            "mixed_knot_s": line,
            "mixed_slope_s": slope,
            "mixed_batch": m_batch,
            "mixed_base_s": m_base,
            "mixed_per_token_s": m_per_token,
            "mixed_pair_s": pair,
            "mixed_chunk_s": 0.0,
        }
    else:
        rows = data.only(_limits_of_mixed(data))
        context_s = np.interp(rows.decode_requests, batch, per_token)
        form = {**fit_mixed(rows, pair, context_s), "mixed_measured": True}
    return IterationTimeModel(**common, **form)  # type: ignore[arg-type]


def _limits_of_mixed(data: Measurements) -> NDArray[np.bool_]:
    """(n,) rows for the mixed fit: chunked iterations, and their limits without decodes or chunks.

    Decodes without a chunk tell the constant per chunk from the line; those with fewer tokens than
    any chunked iteration are left out, since small batches have kernels of their own. Where times
    are composed, several prompts count as one equivalent chunk, without a constant each: left out.
    """
    mixed = data.part == PARTS.index("mixed")
    one_call = (data.chunks == 1) if data.tile_tokens > 1 else True
    prefill = (data.part == PARTS.index("prefill")) & one_call
    known = np.isin(data.decode_requests, np.unique(data.decode_requests[mixed]))
    known &= data.decode_requests >= data.total_tokens[mixed].min()
    decode = (data.part == 0) & data.scored & known
    return mixed | prefill | decode


def fit_decode(
    rows: Measurements, fastest_s: float, slowest_s: float
) -> tuple[tuple[int, ...], tuple[float, ...], tuple[float, ...]]:
    """Base and per-token seconds at each measured batch size (or at both ends of each tile).

    Where a batch size was measured at three contexts or more, both are fitted (relative least
    squares, the per-token time held between reading KV at the memory's peak and a quarter of it).
    Elsewhere the per-token time is that of the neighbours. Then the base per request is made
    not to rise with the batch, so that throughput does not fall on kernel-shape noise.

    Returns:
        Batch sizes from 1 on, base seconds, seconds per token of context.
    """
    from scipy.optimize import isotonic_regression, lsq_linear

    tile = rows.tile_tokens
    labels = -(-rows.decode_requests // tile)
    tiles = np.unique(labels)
    slopes = np.full(len(tiles), np.nan)
    for i, label in enumerate(tiles):
        mine = labels == label
        c, t = rows.context_tokens[mine], rows.seconds[mine]
        if len(np.unique(c)) < 3:
            continue
        unit = c.max()
        a = np.column_stack([1 / t, c / unit / t])
        bounds = ([0.0, fastest_s * unit], [np.inf, slowest_s * unit])
        slopes[i] = lsq_linear(a, np.ones(len(t)), bounds=bounds, method="bvls").x[1] / unit
    known = ~np.isnan(slopes)
    if known.any():
        slopes = np.interp(tiles, tiles[known], slopes[known])
        if tile > 1 and np.any(np.diff(slopes) > SLOPE_ROUNDING * slopes[:-1]):
            rows_of = np.asarray([np.sum(labels == label) for label in tiles], dtype=np.float64)
            slopes = isotonic_regression(slopes, weights=rows_of, increasing=False).x
    else:
        slopes = np.full(len(tiles), 1.25 * fastest_s)  # four fifths of peak, as kernels reach
    bases = np.empty(len(tiles))
    weights = np.empty(len(tiles))
    for i, label in enumerate(tiles):
        mine = labels == label
        c, t = rows.context_tokens[mine], rows.seconds[mine]
        weight = 1 / t**2
        bases[i] = max(float(np.average(t - slopes[i] * c, weights=weight)), 0.05 * t.min())
        weights[i] = mine.sum()
    # A tile holds from its first batch size to its last; one measured batch size is both.
    sizes = np.unique(np.concatenate([(tiles - 1) * tile + 1, tiles * tile]))
    at = np.searchsorted(tiles, -(-sizes // tile))
    per_request = isotonic_regression(
        np.log(bases[at] / sizes), weights=weights[at], increasing=False
    ).x
    bases, slopes = np.exp(per_request) * sizes, slopes[at]
    batch = [int(b) for b in sizes]
    if batch[0] != 1:  # a smaller batch takes no longer, and hardly less, than the smallest seen
        batch, bases, slopes = [1, *batch], np.append(bases[0], bases), np.append(slopes[0], slopes)
    return tuple(batch), _floats(bases), _floats(slopes)


def fit_prefill(
    rows: Measurements,
    fastest_s: float,
    slowest_s: float,
    floor_s: float,
    siblings: tuple[Measurements, ...] = (),
) -> tuple[float, tuple[int, ...], tuple[float, ...], float]:
    """The attention term, and the line over new tokens with the hinges that the data ask for.

    The attention coefficient is told apart from the line by iterations of as many tokens in
    different numbers of prompts; it is held between the peak's FLOP/s and a tenth of it, and is
    half the peak's where the data do not tell.

    Args:
        rows: prefill iterations.
        fastest_s: least seconds per unit of the pair sum.
        slowest_s: most seconds per unit.
        floor_s: seconds of a decode of one request, which the line starts from at 0 tokens if the
            smallest prefill takes longer.
        siblings: prefill iterations that lend their shape.

    Returns:
        Seconds per unit of the pair sum, hinges, seconds at the hinges, last slope.
    """
    total, w, t = rows.total_tokens, rows.pair_sum, rows.seconds
    weight = 1 / t**2
    sizes, where = np.unique(total, return_inverse=True)
    mass: Floats = np.bincount(where, weight).astype(np.float64)
    dw = w - (np.bincount(where, weight * w) / mass)[where]
    dt = t - (np.bincount(where, weight * t) / mass)[where]
    spread = float(np.sum(weight * dw * dw))
    # Rounding alone leaves a spread of some 1e-16 of the pair sums themselves.
    if spread > 1e-9 * float(np.sum(weight * w * w)):
        pair = float(np.clip(np.sum(weight * dw * dt) / spread, fastest_s, slowest_s))
    else:
        pair = 2 * fastest_s
    rest = np.bincount(where, weight * (t - pair * w)) / mass
    rest = np.maximum(rest, 0.05 * t.min())
    lent = borrowed_points(sizes, rest, siblings)
    if lent:
        sizes = np.append(sizes, list(lent))
        rest = np.append(rest, list(lent.values()))
        mass = np.append(mass, np.full(len(lent), mass.min()))
        order = np.argsort(sizes)
        sizes, rest, mass = sizes[order], rest[order], mass[order]
    knots, line, slope = _hinged_line(sizes, rest, mass, floor_s, rows.tile_tokens > 1)
    return pair, knots, line, slope


def borrowed_points(
    sizes: Ints, seconds: Floats, siblings: tuple[Measurements, ...]
) -> dict[int, float]:
    """Prefill seconds at sizes that only siblings measured, within the range of `sizes`.

    The same LLM bends at the same numbers of tokens on other GPUs and degrees: the ratio to a
    sibling, interpolated over the logarithm of the tokens, times the sibling's time; the geometric
    mean over the siblings.
    """
    lent: dict[int, list[float]] = {}
    for sibling in siblings:
        theirs, where = np.unique(sibling.total_tokens, return_inverse=True)
        log_s = np.bincount(where, np.log(sibling.seconds)) / np.bincount(where)
        common, mine, other = np.intersect1d(sizes, theirs, return_indices=True)
        if len(common) < 2:
            continue
        ratio = np.log(seconds[mine]) - log_s[other]
        for size, log_theirs in zip(theirs, log_s, strict=True):
            if size not in sizes and common[0] < size < common[-1]:
                here = float(np.interp(np.log(size), np.log(common), ratio))
                lent.setdefault(int(size), []).append(float(log_theirs) + here)
    return {size: float(np.exp(np.mean(values))) for size, values in sorted(lent.items())}


def fit_mixed(rows: Measurements, pair_s: float, context_s: Floats) -> dict[str, object]:
    """The unified form of chunked iterations, by non-negative least squares on relative errors.

    The hinges over all tokens come first, from the rest that attention leaves, then everything is
    fitted at once: line, base over the decoding requests, the decode fit's context term by a common
    factor, attention term, constant per chunk.

    Args:
        rows: chunked iterations, and with them the prefills and decodes that are their limits.
        pair_s: attention coefficient of the prefill fit.
        context_s: (n,) seconds per token of context in the decode fit, for each row's batch.
    """
    from scipy.optimize import nnls

    total, t, w, n = rows.total_tokens, rows.seconds, rows.pair_sum, rows.chunks
    d, c = rows.decode_requests, rows.context_tokens

    chunked = n > 0
    rest = np.maximum(t - pair_s * w - context_s * c, 0.05 * t.min())[chunked]
    sizes, where = np.unique(total[chunked], return_inverse=True)
    weight = 1 / t[chunked] ** 2
    mass: Floats = np.bincount(where, weight).astype(np.float64)
    rough = np.bincount(where, weight * rest) / mass
    knots, _, _ = _hinged_line(sizes, rough, mass, float(rough[0]), rows.tile_tokens > 1)

    grid = np.unique(d)  # from 0
    ends = np.append(np.asarray(knots[1:], dtype=np.float64), np.inf)
    line = [np.clip(total - a, 0, b - a) for a, b in zip(knots, ends, strict=True)]
    hats = [np.interp(d, grid, row) for row in np.eye(len(grid))]
    columns = np.column_stack([np.ones(len(t)), *line, *hats[1:], context_s * c, w, n])
    scale = np.maximum(np.abs(columns).max(axis=0), 1e-300)
    counts = np.ones(len(t))
    if start_behind_cache(rows, pair_s) > START_SHARE:
        cached = rows.cached_tokens
        counts[(cached > 0) & (cached <= USUAL_CACHED_TOKENS)] = USUAL_COUNTS**0.5
    x, _ = nnls(columns / scale * (counts / t)[:, None], counts, maxiter=50 * columns.shape[1])
    x = x / scale
    k, m = len(knots), len(grid) - 1
    values = x[0] + np.append(0.0, np.cumsum(x[1:k] * np.diff(knots)))
    base = np.append(0.0, x[1 + k : 1 + k + m])
    # The decode fit's seconds per token, by one common factor.
    per_token = x[-3] * np.asarray([context_s[d == g][0] for g in grid])
    return {
        "mixed_knot_tokens": knots,
        "mixed_knot_s": _floats(values),
        "mixed_slope_s": float(x[k]) or _chord(knots, _floats(values)),
        "mixed_batch": tuple(int(g) for g in grid),
        "mixed_base_s": _floats(base),
        "mixed_per_token_s": _floats(per_token),
        "mixed_pair_s": float(x[-2]),
        "mixed_chunk_s": float(x[-1]),
    }


def start_behind_cache(rows: Measurements, pair_s: float) -> float:
    """Median share by which a chunk behind the least cache takes longer than a first chunk.

    Of chunked iterations that are the same but for that; what looking at the cache costs (`pair_s`
    per unit of the pair sum) is taken off. 0 where there are no such rows.
    """
    mixed = rows.of("mixed")
    keys = list(zip(mixed.decode_requests, mixed.context_tokens, mixed.chunks, mixed.chunk_tokens,
                    strict=True))  # fmt: skip
    cached = mixed.cached_tokens
    if not (cached == 0).any() or not (cached > 0).any():
        return 0.0
    least = int(cached[cached > 0].min())
    behind = {key: k for k, key in enumerate(keys) if cached[k] == least}
    pairs = [(k, behind[key]) for k, key in enumerate(keys) if cached[k] == 0 and key in behind]
    if not pairs:
        return 0.0
    first, later = np.asarray(pairs).T
    looking = pair_s * (mixed.pair_sum[later] - mixed.pair_sum[first])
    longer = mixed.seconds[later] - looking - mixed.seconds[first]
    return float(np.median(longer / mixed.seconds[first]))


def _hinged_line(
    sizes: Ints, seconds: Floats, weights: Floats, floor_s: float, in_blocks: bool
) -> tuple[tuple[int, ...], tuple[float, ...], float]:
    """A rising line through (sizes, seconds) with as few hinges as the tolerance allows.

    With `in_blocks` it may jump from the end of one block of tokens to the start of the next, and
    is straight within a block.
    """
    from scipy.optimize import isotonic_regression

    if in_blocks:
        sizes, seconds, weights = _straight_in_blocks(sizes, seconds, weights)
    rising = isotonic_regression(seconds, weights=weights).x
    x = np.append(0, sizes)
    y = np.append(min(floor_s, rising[0]), rising)
    keep = {0, len(x) - 1}
    spans = [(0, len(x) - 1)]
    while spans:
        a, b = spans.pop()
        if b - a < 2:
            continue
        inner = slice(a + 1, b)
        chord = y[a] + (y[b] - y[a]) * (x[inner] - x[a]) / (x[b] - x[a])
        off = np.abs(chord / y[inner] - 1)
        worst = int(np.argmax(off))
        if off[worst] > LINE_TOLERANCE:
            middle = a + 1 + worst
            keep.add(middle)
            spans += [(a, middle), (middle, b)]
    chosen = sorted(keep)
    knots, line = tuple(int(v) for v in x[chosen]), _floats(y[chosen])
    return knots, line, _chord(knots, line)


def _straight_in_blocks(
    sizes: Ints, seconds: Floats, weights: Floats
) -> tuple[Ints, Floats, Floats]:
    """The ends of each block of tokens, on the rising straight line through its points."""
    block = (sizes - 1) // BLOCK_TOKENS
    ends, values, masses = [], [], []
    for k in np.unique(block):
        mine = block == k
        x, y, w = sizes[mine].astype(np.float64), seconds[mine], weights[mine]
        at, level = np.average(x, weights=w), np.average(y, weights=w)
        spread = float(np.sum(w * (x - at) ** 2))
        slope = max(0.0, float(np.sum(w * (x - at) * (y - level)) / spread)) if spread else 0.0
        for end in (k * BLOCK_TOKENS + 1, (k + 1) * BLOCK_TOKENS):
            ends.append(int(end))
            values.append(max(level + slope * (end - at), 0.05 * level))
            masses.append(float(w.sum()))
    return np.asarray(ends), np.asarray(values), np.asarray(masses)


def _chord(knots: tuple[int, ...], line: tuple[float, ...]) -> float:
    """Slope of the line over the last half of its range, for beyond it."""
    last = knots[-1]
    return max(0.0, (line[-1] - float(np.interp(last / 2, knots, line))) / (last / 2))


def _floats(values: Floats) -> tuple[float, ...]:
    return tuple(float(v) for v in values)


def fit_all(sets: list[Measurements]) -> tuple[IterationTimeModel, ...]:
    """Fit every set; whole iterations of one LLM on several GPUs or degrees are siblings."""
    return tuple(fit(data, siblings_of(data, sets)) for data in sets)


def siblings_of(data: Measurements, sets: list[Measurements]) -> tuple[Measurements, ...]:
    """Whole iterations of the same LLM, measured the same way on other GPUs or degrees."""
    return tuple(
        other
        for other in sets
        if other is not data
        and data.tile_tokens == other.tile_tokens == 1
        and (other.llm, other.kind) == (data.llm, data.kind)
    )
