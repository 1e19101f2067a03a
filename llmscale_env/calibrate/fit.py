"""Iteration times from latencies that a client saw, fitted through the simulator itself.

A step of `b` decoding requests with `c` tokens of context, and of chunks of prompts with `T` tokens, takes

    max(read(b + T), compute * (b + T)) + context * c + attention * pairs
    + per_request * b + per_chunk * chunks

`read`, `compute`, `context` and `attention` are those of the cards' roofline, each times a factor;
`per_request` and `per_chunk` are the engine's own time. With the two times of the front end these are
eight numbers. They are searched so that the simulator, given exactly the requests that were sent,
makes the latencies that were seen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, astuple, dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from llmscale_env.calibrate.observed import Floats, Observed, ObservedError
from llmscale_env.calibrate.replay import FrontEnd, Replay, Replayed, Server
from llmscale_env.cluster.cards import gpu_card, llm_card
from llmscale_env.cluster.iteration_model import FitError, IterationTimeModel
from llmscale_env.cluster.roofline import matrix_s, shipped_efficiency

METRICS = {"TTFT": "ttft_s", "time per token": "tpot_s", "E2E": "e2e_s"}
WEIGHTS = {"TTFT": 1.0, "time per token": 2.0, "E2E": 2.0}
"""Of the logarithm of simulated over measured. A TTFT depends on when between two steps a request comes,
so it is noisier."""

BLOCK = 10
"""Requests in a row that are fitted or held out together: neighbours share their batch."""

SPLITS = ("blocks", "later")
SEARCHES = ("global", "local")

_ROBUST = 0.05
"""Relative errors far above it count by their size and no longer by its square."""

_PRIOR = 0.05
"""How much a factor of e away from the cards costs, as a relative error: decides what the run does not."""

_HARDLY = 0.005
"""Root mean square of relative changes of latencies that says nothing about a parameter."""

_SPAN = 3.0
"""Every number stays within a factor of e**3 (20) of where it starts."""

_LONG = (4096, 8192)
_READ_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True)
class Parameters:
    """What is fitted; factors are of the roofline's times.

    Attributes:
        read, compute, context, attention: factors of reading the weights, of matrix products, of reading
            KV in decode, of attention in prefill.
        per_request_s, per_chunk_s: the engine's own time in a step, per decoding request and per chunk of
            a prompt.
        delay_s, delay_per_token_s: of the front end, as in `FrontEnd`.
    """

    read: float = 1.0
    compute: float = 1.0
    context: float = 1.0
    attention: float = 1.0
    per_request_s: float = 2e-5
    per_chunk_s: float = 1e-3
    delay_s: float = 2e-3
    delay_per_token_s: float = 5e-7

    @property
    def front_end(self) -> FrontEnd:
        return FrontEnd(self.delay_s, self.delay_per_token_s)


def scaled(start: IterationTimeModel, at: Parameters, source: str = "") -> IterationTimeModel:
    """Iteration times of a pair of cards at other shares of the peaks, with the engine's own time.

    Args:
        start: the cards' roofline.
        at: factors and the engine's own times.
        source: where they come from.
    """
    compute_s = at.compute * matrix_s_per_token(start)
    reads = np.asarray([at.read * start.decode_s(n, 0) for n in _READ_TOKENS])
    # Beyond the last entry all experts are read, so from there on only computing takes longer.
    bend = max(int(reads[-1] / compute_s) + 1, _READ_TOKENS[-1] + 1)

    def line(tokens: tuple[int, ...]) -> tuple[float, ...]:
        read = np.interp(tokens, _READ_TOKENS, reads)
        both = np.maximum(read, compute_s * np.asarray(tokens))
        return tuple(float(s) for s in np.maximum.accumulate(both))

    knots = tuple(sorted({0, *_READ_TOKENS, _crossing(reads, compute_s), bend}))
    batch = start.decode_batch
    own = at.per_request_s * np.asarray(batch)
    context_s = tuple(at.context * s for s in start.decode_per_token_s)
    pair_s = at.attention * start.mixed_pair_s
    return replace(
        start,
        kind="user",
        source=source,
        decode_base_s=tuple(float(s) for s in np.asarray(line(batch)) + own),
        decode_per_token_s=context_s,
        prefill_knot_tokens=knots,
        prefill_knot_s=tuple(s + at.per_chunk_s for s in line(knots)),
        prefill_slope_s=compute_s,
        prefill_pair_s=pair_s,
        mixed_knot_tokens=knots,
        mixed_knot_s=line(knots),
        mixed_slope_s=compute_s,
        mixed_batch=(0, *batch),
        mixed_base_s=(0.0, *(float(s) for s in own)),
        mixed_per_token_s=(context_s[0], *context_s),
        mixed_pair_s=pair_s,
        mixed_chunk_s=at.per_chunk_s,
        mixed_measured=False,
        errors={},
        notes="",
    )


def matrix_s_per_token(start: IterationTimeModel) -> float:
    """Seconds per token of a long prompt, attention aside, at the roofline's shares.

    From the matrix products themselves: lines of some older roofline models are too flat beyond their bend.
    """
    cards = llm_card(start.llm), gpu_card(start.gpu), start.tp
    products = matrix_s(*cards, np.asarray(_LONG, dtype=np.float64), shipped_efficiency()[0])
    line = [start.mixed_s(0, 0, tokens, 0) for tokens in _LONG]
    return max(float(s[1] - s[0]) for s in (products, line)) / (_LONG[1] - _LONG[0])


def _crossing(reads: Floats, compute_s: float) -> int:
    """The first number of tokens at which computing takes as long as reading."""
    above = np.flatnonzero(compute_s * np.asarray(_READ_TOKENS) >= reads)
    last = reads[above[0]] if len(above) else reads[-1]
    return max(int(np.ceil(last / compute_s)), 1)


@dataclass(frozen=True)
class Row:
    """Measured against simulated, of one metric over some requests.

    Attributes:
        n: requests.
        measured, simulated: p50, p90 and p99 in seconds.
        median, p90, bias: of the requests' relative errors: median and p90 of the absolute ones, median of
            the signed ones (above 0: the simulator is too slow).
        mean, worst: of the absolute ones.
    """

    n: int
    measured: tuple[float, float, float]
    simulated: tuple[float, float, float]
    median: float
    p90: float
    bias: float
    mean: float
    worst: float


Score = dict[str, Row]
"""Rows by metric."""


def score(observed: Observed, replayed: Replayed, of: NDArray[np.bool_]) -> Score:
    """How far a replay is from what was observed, over some of the requests.

    Metrics that none of them has are left out.
    """
    rows: Score = {}
    for metric, name in METRICS.items():
        seen, made = getattr(observed, name), getattr(replayed, name)
        which = of & np.isfinite(seen) & (seen > 0)
        if not which.any():
            continue
        error = made[which] / seen[which] - 1.0
        rows[metric] = Row(
            n=int(which.sum()),
            measured=_quantiles(seen[which]),
            simulated=_quantiles(made[which]),
            median=float(np.median(np.abs(error))),
            p90=float(np.quantile(np.abs(error), 0.9)),
            bias=float(np.median(error)),
            mean=float(np.abs(error).mean()),
            worst=float(np.abs(error).max()),
        )  # fmt: skip
    return rows


def _quantiles(seconds: Floats) -> tuple[float, float, float]:
    p50, p90, p99 = np.quantile(seconds, (0.5, 0.9, 0.99))
    return float(p50), float(p90), float(p99)


@dataclass(frozen=True)
class Range:
    """What a set of requests covers: beyond it times are extrapolated by the form.

    Attributes:
        batch: most requests at once.
        context_tokens: longest prompt with its answer.
        prompt_tokens: longest prompt.
    """

    batch: int
    context_tokens: int
    prompt_tokens: int

    @classmethod
    def of(cls, observed: Observed, batch: NDArray[np.int64], which: NDArray[np.bool_]) -> Range:
        held = observed.input_tokens + observed.output_tokens
        tops = (int(x[which].max()) for x in (batch, held, observed.input_tokens))
        return cls(*tops)

    def outside(self, observed: Observed, batch: NDArray[np.int64]) -> NDArray[np.bool_]:
        """(n,) whether a request lies beyond it."""
        held = observed.input_tokens + observed.output_tokens
        beyond: NDArray[np.bool_] = (
            (batch > self.batch)
            | (held > self.context_tokens)
            | (observed.input_tokens > self.prompt_tokens)
        )
        return beyond


@dataclass(frozen=True)
class Calibration:
    """A fit, and how good it is.

    Attributes:
        model: iteration times, kind "user".
        parameters: what was fitted.
        server: settings that were replayed.
        fitted, held_out: (n,) which requests were fitted, which were only scored.
        replayed: of all requests.
        scores: by "cards alone" (nothing fitted, held-out requests), "fitted" and "held out".
        range: that the fitted requests cover.
        n_outside: held-out requests beyond it.
        undecided: parameters that the run says nothing about; they stand near where they started.
        replays: how often the run was simulated.
    """

    model: IterationTimeModel
    parameters: Parameters
    server: Server
    fitted: NDArray[np.bool_]
    held_out: NDArray[np.bool_]
    replayed: Replayed
    scores: dict[str, Score]
    range: Range
    n_outside: int
    undecided: tuple[str, ...]
    replays: int

    def as_json(self) -> dict[str, object]:
        """What a data file keeps beside the model: enough to replay another run with the same front end."""
        return {
            "parameters": asdict(self.parameters),
            "server": asdict(self.server),
            "undecided": list(self.undecided),
            "range": asdict(self.range),
        }


def halves(observed: Observed, split: str) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which requests are fitted and which are held out.

    "blocks": in every run the first ten by arrival are fitted, the next ten held out, and so on. "later": of
    every run the first half by arrival is fitted. All are replayed: those held out are load for the others.

    Raises:
        ObservedError: one of the halves would be empty.
    """
    place = np.arange(len(observed)) - np.searchsorted(observed.run, observed.run, side="left")
    if split == "later":
        size = np.bincount(observed.run)[observed.run]
        first = 2 * place < size
    else:
        first = place // BLOCK % 2 == 0
    fitted, held_out = observed.believed & first, observed.believed & ~first
    if not (fitted.any() and held_out.any()):
        raise ObservedError(
            f"{observed.name}: {int(observed.believed.sum())} requests with latencies are too few to hold "
            f"half of them out; there must be more than {BLOCK}"
        )
    return fitted, held_out


def calibrate(
    observed: Observed,
    start: IterationTimeModel,
    server: Server,
    *,
    split: str = "blocks",
    search: str = "global",
    seed: int = 0,
    say: Callable[[str], None] | None = None,
    after_each: Callable[[], object] = lambda: None,
) -> Calibration:
    """Fit iteration times and front end to one half of the requests, and score them on the other.

    Least squares find a valley (scipy's trust region on robust relative errors), Nelder and Mead's simplex
    its ground. As the replay jumps where requests change places, there are several: differential evolution
    looks for a lower one.

    Args:
        observed: what the client saw.
        start: the cards' roofline of the pair that was observed.
        server: its settings.
        split: one of `SPLITS`.
        search: "local" leaves differential evolution out.
        seed: of differential evolution.
        say: told how far it is.
        after_each: called after each replay (a progress bar).

    Raises:
        ObservedError: too few requests, or one that does not fit the server.
    """
    replay = Replay(observed, server)
    fitted, held_out = halves(observed, split)
    problem = Problem(observed, replay, start, fitted, after_each)
    x = _search(problem, search, seed, say or (lambda line: None))
    at = problem.parameters(x)
    model = scaled(start, at)
    replayed = replay.run(model, at.front_end)
    alone = replay.run(start, FrontEnd())
    scores = {
        "cards alone": score(observed, alone, held_out),
        "fitted": score(observed, replayed, fitted),
        "held out": score(observed, replayed, held_out),
    }
    batch = replayed.largest_batch()
    covered = Range.of(observed, batch, fitted)
    model = replace(
        model,
        source=f"fitted to {int(fitted.sum())} requests of {observed.name} ({observed.source})",
        errors={
            metric: FitError(int(fitted.sum()), row.n, row.mean, row.worst)
            for metric, row in scores["held out"].items()
        },
        max_batch=covered.batch,
        max_context_tokens=covered.context_tokens,
        max_prefill_tokens=covered.prompt_tokens,
        notes=f"front end: {1e3 * at.delay_s:.2f} ms and {1e6 * at.delay_per_token_s:.2f} us per prompt "
        "token, not in these times; errors are of latencies that a client sees",
    )
    return Calibration(
        model, at, server, fitted, held_out, replayed, scores, covered,
        int((covered.outside(observed, batch) & held_out).sum()),
        problem.undecided(x), problem.replays,
    )  # fmt: skip


class Problem:
    """Residuals of the fit over logarithms of the parameters, 0 being where they start.

    Attributes:
        names: of the parameters, in order.
        replays: how often the run was simulated.
    """

    def __init__(
        self,
        observed: Observed,
        replay: Replay,
        start: IterationTimeModel,
        fitted: NDArray[np.bool_],
        after_each: Callable[[], object] = lambda: None,
    ) -> None:
        self._after_each = after_each
        self._replay, self._start = replay, start
        self._seen = []
        for metric, name in METRICS.items():
            seen = getattr(observed, name)
            which = fitted & np.isfinite(seen) & (seen > 0)
            self._seen.append((name, which, np.log(seen[which]), WEIGHTS[metric]))
        self.names = tuple(f.name for f in fields(Parameters))
        self._origin = np.asarray(astuple(Parameters()))
        self.replays = 0

    def parameters(self, x: Floats) -> Parameters:
        return Parameters(*(float(p) for p in self._origin * np.exp(x)))

    def residuals(self, x: Floats) -> Floats:
        """Weighted log ratios of simulated to measured, then the prior's."""
        self.replays += 1
        at = self.parameters(x)
        made = self._replay.run(scaled(self._start, at), at.front_end)
        self._after_each()
        parts = [
            weight * (np.log(getattr(made, name)[which]) - seen)
            for name, which, seen, weight in self._seen
        ]
        return np.concatenate([*parts, _PRIOR * x])

    def loss(self, x: Floats) -> float:
        """The sum that is minimised: scipy's soft L1 at `_ROBUST`."""
        z = (self.residuals(x) / _ROBUST) ** 2
        return float(_ROBUST**2 * np.sum(np.sqrt(1.0 + z) - 1.0))

    def undecided(self, x: Floats) -> tuple[str, ...]:
        """Parameters that may be half as large again, or a third smaller, and hardly a latency changes."""
        n = len(self.names)
        here = self.residuals(x)[:-n]

        def moves(step: Floats) -> float:
            return float(np.sqrt(np.mean((self.residuals(x + step)[:-n] - here) ** 2)))

        steps = np.log(1.5) * np.eye(n)
        return tuple(
            name
            for name, step in zip(self.names, steps, strict=True)
            if max(moves(step), moves(-step)) < _HARDLY
        )


def _search(problem: Problem, search: str, seed: int, say: Callable[[str], None]) -> Floats:
    from scipy.optimize import differential_evolution, least_squares, minimize

    n = len(problem.names)
    x = np.zeros(n)
    # Coarse differences first: with fine ones the jumps of the replay hide the slope.
    for scale, step in ((0.3, 0.1), (0.1, 0.05), (_ROBUST, 0.02), (_ROBUST, 0.01)):

        def jacobian(at: Floats, step: float = step) -> Floats:
            here = problem.residuals(at)
            moved = [problem.residuals(at + step * e) - here for e in np.eye(n)]
            slopes: Floats = np.stack(moved, axis=1) / step
            return slopes

        x = least_squares(
            problem.residuals, x, jac=jacobian, bounds=(-_SPAN, _SPAN), loss="soft_l1",
            f_scale=scale, max_nfev=40,
        ).x  # fmt: skip
    say(f"least squares: loss {problem.loss(x):.4f} after {problem.replays} replays")

    def descend(x: Floats) -> Floats:
        for size in (0.3, 0.1, 0.03):
            options = {
                "initial_simplex": np.vstack([x, x + size * np.eye(n)]),
                "adaptive": True,
                "maxfev": 300,
                "xatol": 1e-3,
                "fatol": 1e-5,
            }
            x = minimize(problem.loss, x, method="Nelder-Mead", options=options).x
        say(f"simplex: loss {problem.loss(x):.4f} after {problem.replays} replays")
        return x

    x = descend(x)
    if search == "global":
        limits = [(max(c - 1.0, -_SPAN), min(c + 1.0, _SPAN)) for c in x]
        x = np.clip(x, -_SPAN, _SPAN)
        options = {"popsize": 8, "maxiter": 40, "seed": seed, "polish": False}
        x = differential_evolution(problem.loss, limits, x0=x, **options).x
        say(f"differential evolution: loss {problem.loss(x):.4f} after {problem.replays} replays")
        x = descend(x)
    return np.asarray(x, dtype=np.float64)
