"""What may come, drawn from what has been seen: lengths of outputs, and arrivals.

*Lengths.* A request gets the length of one that has finished, of its class and of about its prompt
length, and longer than what it has emitted. Until enough have finished, lengths are exponential with the
predicted mean. Those that finish in an episode's first minute are the short ones, so for another half minute
what is drawn is too short.

*Arrivals.* What follows is what has followed before, at times that looked like now (analogs). Arrivals
are counted in bins of 10 s, the day before included, apart for short and for long prompts. Two times look
alike where the rates of the last 30 s and 3 minutes stand alike to that of the last quarter of an hour.
The counts that followed are taken, times the ratio of the two rates of a quarter of an hour and a drawn
factor. A job of thousands at one instant cannot be expected, and is left out. A ratio of two noisy rates
leans upward, most where long prompts are rare, so a little more is drawn than comes: on the safe side.

Without a day before there are few such times. Short and long prompts then have the same ones, and within a
bin all requests of a class come as they came in one of the last half hour that had about so many. In the
first hour rates are compared over up to a quarter of what there has been, and in the first minutes bins are
drawn one by one. With a day before, both were tried on training windows, and gained nothing.

*Strata.* Many futures are drawn as counts. The worst half minute of each says how bad it is, and in this
order they are cut into strata, thin ones at the bad end, of which one is played each. So a mean over few
weighted futures sees the bursts that one in twenty has.
"""

from __future__ import annotations

import math
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from llmscale_env.control.twins import Future, unfinished
from llmscale_env.control.unfinished_work import full_batch_cost_gpu_s
from llmscale_env.control.view import ClusterView
from llmscale_env.scenarios.schema import Scenario
from llmscale_env.workload.days import PAST_BIN_S
from llmscale_env.workload.requests import PS_PER_S, RequestTable

BIN_S = PAST_BIN_S
"""Width of the bins in which arrivals are counted."""
LOOKS = (3, 18, 90)
"""Bins over which rates are compared; the last one is the level."""
CANDIDATES = 256
"""Futures that are drawn as counts and put in order."""
WORST = 3
"""Bins over which the load of a future is averaged before its worst moment is sought."""
ENOUGH = 500
"""Requests that must have finished before their lengths are drawn from."""
KEPT = 6000
"""Finished requests of a class whose lengths are kept."""
RECENT = 180
"""Bins from which it is known when within them requests came."""
NEAR = 16
"""In order of their numbers of requests, so many of these around a number stand for it."""
PROMPT_GROUPS = 8
"""Groups of prompt lengths within which outputs are alike."""

_DRAWS = 1
"""Tells what is drawn here from the requests of the same seed."""
_HOUR = 3600 // BIN_S
_MOST_LOG = 3.0
_LONGEST = 100_000


class Kind(NamedTuple):
    """Requests of one cell (an LLM and a class) whose prompts are short, or long.

    Attributes:
        cell: which one, `llm * classes + slo_class`.
        counts: (k,) arrivals by bin until now.
        lengths: (m, 2) prompts and outputs to draw from; none: see `means`.
        means: of prompts and outputs.
    """

    cell: int
    counts: NDArray[np.float64]
    lengths: NDArray[np.int64]
    means: tuple[float, float]


class FutureDrawer:
    """Sees a cluster in one region from decision to decision, and draws what may come.

    Args:
        scenario: of the cluster.
        seed: of what is drawn.
        strata: shares of futures, from the best to the worst, of which one is played each; they sum to 1.
        spread: standard deviation of the log of the drawn factor.
    """

    def __init__(
        self,
        scenario: Scenario,
        seed: int,
        strata: tuple[float, ...],
        *,
        spread: float = 0.1,
    ) -> None:
        self._scenario = scenario
        self._rng = np.random.default_rng([seed, _DRAWS])
        self.strata = strata
        self._spread = spread
        llms, classes = len(scenario.fleet.llms), scenario.classes
        self._cells = llms * len(classes)
        self._finished = [np.zeros((0, 2), np.int64) for _ in range(self._cells)]
        self._deferrable = [c.priority > 0 for c in classes] * llms
        # Its urgent work says how bad a future is; all its work where no class is urgent.
        self._weighs = [not each or all(self._deferrable) for each in self._deferrable]
        self._cost = full_batch_cost_gpu_s(scenario).reshape(2, -1)
        self._past: NDArray[np.float64] | None = None
        self._past_bins = 0
        # Bins, and seconds within them.
        self._recent: list[NDArray[np.float64]] = [np.zeros((0, 2))] * self._cells

    # ---- what is seen ----

    def see(self, view: ClusterView) -> None:
        """What has arrived and finished since the last decision."""
        if self._past is None:
            self._begin(view)
        assert self._past is not None
        came = view.arrived
        # Only whole bins are looked at; the last requests may be in one that has not ended.
        self._now = self._past_bins + math.floor(view.time_s / BIN_S + 1e-9)
        if self._now >= self._past.shape[2]:
            more = np.zeros((*self._past.shape[:2], self._now + _HOUR - self._past.shape[2]))
            self._past = np.concatenate([self._past, more], axis=2)
        cells = self._cell(came.llm, came.slo_class)
        bins = self._past_bins + (came.arrival_s / BIN_S).astype(np.int64)
        for k, each in enumerate((np.ones(len(came)), came.input_tokens)):
            np.add.at(self._past[k], (cells, bins), each)
        for c, recent in enumerate(self._recent if not self.knows_a_day else ()):
            mine = cells == c
            within = came.arrival_s[mine] - (bins[mine] - self._past_bins) * BIN_S
            known = np.concatenate([recent, np.column_stack([bins[mine], within])])
            self._recent[c] = known[np.searchsorted(known[:, 0], self._now - RECENT) :]
        np.add.at(self._predicted, cells, 1.0)
        np.add.at(self._predicted_tokens, cells, came.predicted_output_tokens)
        done = view.finished
        of = self._cell(done.llm, done.slo_class)
        for c, had in enumerate(self._finished):
            mine = of == c
            if mine.any():
                new = np.stack([done.input_tokens[mine], done.output_tokens[mine]], axis=1)
                self._finished[c] = np.concatenate([had, new])[-KEPT:]

    def _cell(self, llm: NDArray[np.int64], slo_class: NDArray[np.int64]) -> NDArray[np.int64]:
        return llm * len(self._scenario.classes) + slo_class

    def _begin(self, view: ClusterView) -> None:
        """(2, cells, k) requests and prompt tokens by bin of the time before."""
        n, past = self._cells, view.past
        if past is None:
            self._past, self._past_bins = np.zeros((2, n, 0)), 0
            self._predicted, self._predicted_tokens = np.zeros(n), np.zeros(n)
            return
        requests, inputs, outputs = (
            x.sum(axis=2).reshape(len(x), -1).T.astype(float)
            for x in (past.requests, past.input_tokens, past.predicted_tokens)
        )
        self._past, self._past_bins = np.stack([requests, inputs]), requests.shape[1]
        self._predicted, self._predicted_tokens = requests.sum(axis=1), outputs.sum(axis=1)

    @property
    def knows(self) -> bool:
        """Whether anything has arrived in the bins that have ended, or these are a quarter of an hour."""
        if self._past is None:
            return False
        return self._now >= LOOKS[-1] or bool(self._past[0, :, : self._now].any())

    @property
    def knows_a_day(self) -> bool:
        """Whether anything is known of the time before the episode."""
        return self._past_bins > 0

    # ---- what may come ----

    def draw(self, view: ClusterView, until_s: float) -> list[Future]:
        """A future for each stratum."""
        n_bins = max(1, math.ceil((until_s - view.time_s) / BIN_S - 1e-9))
        kinds = self._kinds()
        paths: list[NDArray[np.float64]] = []
        alone = [[kind] for kind in kinds]
        together = [list(same) for _, same in groupby(kinds, key=lambda kind: kind.cell)]
        for some in alone if self.knows_a_day else together:
            counts = np.stack([kind.counts for kind in some])
            paths.extend(analog_paths(counts, n_bins, CANDIDATES, self._rng, spread=self._spread))
        order = np.argsort(self._worst(kinds, paths), kind="stable")
        ends = np.cumsum(self.strata) * len(order)
        here = unfinished(view)
        futures, first = [], 0
        for end in np.maximum(ends.round().astype(int), 1).tolist():
            which = int(order[self._rng.integers(min(first, end - 1), end)])
            lengths = self._lengths(
                self._cell(here.llm, here.slo_class),
                here.input_tokens,
                here.predicted_output_tokens,
                here.emitted_tokens,
            )
            arrivals = self._arrivals(kinds, [path[which] for path in paths], view.time_s, until_s)
            futures.append(Future(lengths, arrivals))
            first = end
        return futures

    def _kinds(self) -> list[Kind]:
        assert self._past is not None
        found = []
        for c, deferrable in enumerate(self._deferrable):
            counts, inputs = (x.copy() for x in self._past[:, c, : self._now])
            if not counts.any():
                continue
            if deferrable:  # a job is nothing that recent rates announce
                usual = np.median(counts)
                job = counts > 20 * usual + 200
                mean = inputs[~job].sum() / max(counts[~job].sum(), 1)
                counts[job], inputs[job] = usual, usual * mean
                if not counts.any():
                    continue
            lengths = self._finished[c]
            mean_input = float(inputs.sum() / counts.sum())
            if len(lengths) < ENOUGH:
                means = (mean_input, float(self._predicted_tokens[c] / self._predicted[c]))
                found.append(Kind(c, counts, np.zeros((0, 2), np.int64), means))
                continue
            prompts = np.sort(lengths[:, 0])
            half = np.searchsorted(np.cumsum(prompts), prompts.sum() / 2)
            long = lengths[:, 0] >= prompts[half]
            mean = [float(lengths[which, 0].mean()) for which in (~long, long) if which.any()]
            if len(mean) < 2 or mean[1] - mean[0] < 1:
                found.append(Kind(c, counts, lengths, _means(lengths)))
                continue
            # So many long ones that the prompt tokens of the bin come out.
            n_long = np.clip((inputs - counts * mean[0]) / (mean[1] - mean[0]), 0, counts)
            for n, which in ((counts - n_long, ~long), (n_long, long)):
                found.append(Kind(c, n, lengths[which], _means(lengths[which])))
        return found

    def _worst(self, kinds: list[Kind], paths: list[NDArray[np.float64]]) -> NDArray[np.float64]:
        """(candidates,) GPU-seconds of urgent work in the worst half minute of each."""
        work = np.zeros_like(paths[0]) if paths else np.zeros((CANDIDATES, 1))
        for kind, path in zip(kinds, paths, strict=True):
            if self._weighs[kind.cell]:
                work = work + path * float(self._cost[:, kind.cell] @ np.array(kind.means))
        return worst_sums(work)

    def _arrivals(
        self, kinds: list[Kind], counts: list[NDArray[np.float64]], now_s: float, until_s: float
    ) -> RequestTable:
        rng, parts = self._rng, []
        drawn = [np.floor(each + rng.random(len(each))).astype(np.int64) for each in counts]
        for kind, mine, times in zip(kinds, drawn, self._times(kinds, drawn), strict=True):
            n = int(mine.sum())
            if len(kind.lengths):
                lengths = kind.lengths[rng.integers(len(kind.lengths), size=n)]
            else:
                means = np.maximum(np.array(kind.means), 1.0)
                lengths = 1 + np.floor(rng.exponential(means, (n, 2))).astype(np.int64)
            parts.append(np.column_stack([times, np.full(n, kind.cell), lengths]))
        rows = np.concatenate(parts) if parts else np.zeros((0, 4))
        rows = rows[np.argsort(rows[:, 0], kind="stable")]
        rows = rows[rows[:, 0] < until_s - now_s]
        none = np.zeros(len(rows), np.int64)
        llm, slo_class = np.divmod(rows[:, 1].astype(np.int64), len(self._scenario.classes))
        lengths = np.clip(rows[:, 2:], 1, _LONGEST).astype(np.int64)
        columns: dict[str, Any] = {
            "arrival_ps": np.ceil((now_s + rows[:, 0]) * PS_PER_S).astype(np.int64) + 1,
            "llm": llm,
            "region": none,
            "slo_class": slo_class,
            "input_tokens": lengths[:, 0],
            "output_tokens": lengths[:, 1],
            "predicted_output_tokens": lengths[:, 1],
        }
        return RequestTable(
            **columns,
            llm_names=self._scenario.fleet.llms,
            class_names=tuple(c.name for c in self._scenario.classes),
        )

    def _times(
        self, kinds: list[Kind], drawn: list[NDArray[np.int64]]
    ) -> list[NDArray[np.float64]]:
        """Seconds from now of the requests of each kind, of which so many come in each bin."""
        rng, found = self._rng, []
        for cell, same in groupby(range(len(kinds)), key=lambda k: kinds[k].cell):
            counts = np.stack([drawn[k] for k in same])
            # By bin, and within it kind after kind; which second is whose is as good as drawn.
            of = np.repeat(np.tile(np.arange(len(counts)), counts.shape[1]), counts.T.ravel())
            total = counts.sum(axis=0)
            if self.knows_a_day:
                within = BIN_S * rng.random(int(total.sum()))
            else:
                within = seconds_within(self._recent[cell], self._now, total, rng)
            times = BIN_S * np.repeat(np.arange(len(total)), total) + within
            found += [times[of == k] for k in range(len(counts))]
        return found

    def _lengths(
        self,
        cell: NDArray[np.int64],
        inputs: NDArray[np.int64],
        predicted: NDArray[np.int64],
        emitted: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """(n,) lengths of requests that have emitted so much."""
        mean = np.maximum(predicted, 1).astype(float)
        found = emitted + 1 + np.floor(self._rng.exponential(mean)).astype(np.int64)
        for c, lengths in enumerate(self._finished):
            mine = np.flatnonzero(cell == c)
            if len(lengths) < ENOUGH or len(mine) == 0:
                continue
            shares = np.linspace(0, 1, PROMPT_GROUPS + 1)[1:-1]
            edges = np.quantile(lengths[:, 0], shares)
            of_known = np.searchsorted(edges, lengths[:, 0])
            of_mine = np.searchsorted(edges, inputs[mine])
            for group in range(PROMPT_GROUPS):
                rows, known = mine[of_mine == group], np.sort(lengths[of_known == group, 1])
                first = np.searchsorted(known, emitted[rows], side="right")
                longer = len(known) - first
                pick = first + np.floor(self._rng.random(len(rows)) * longer).astype(np.int64)
                there = longer > 0  # of the others the predicted length is all that is known
                found[rows[there]] = known[pick[there]]
        return found


def analog_paths(
    counts: NDArray[np.float64],
    n_bins: int,
    candidates: int,
    rng: np.random.Generator,
    analogs: int = 256,
    spread: float = 0.1,
) -> NDArray[np.float64]:
    """What may follow: what has followed at times that looked like now.

    Args:
        counts: (K, k) arrivals by bin until now, of kinds that come together.
        n_bins: of what follows.
        candidates: how many may follow.
        rng: draws them.
        analogs: times that are taken to look like now.
        spread: see `FutureDrawer`.

    Returns:
        (K, candidates, n_bins) counts; those of all kinds are of the same times.
    """
    kinds, k = counts.shape
    # What there is of history is cut in four: what is compared, and three quarters to find it in.
    longest = min(LOOKS[-1], max(k - n_bins, 0) // 4)
    if longest < LOOKS[0]:
        return counts[:, rng.integers(k, size=(candidates, n_bins))]
    widths = [min(w, longest) for w in LOOKS]
    times = np.arange(longest, k - n_bins + 1)
    cumulated = np.concatenate([np.zeros((kinds, 1)), np.cumsum(counts, axis=1)], axis=1)
    usual = counts.mean(axis=1, keepdims=True)

    def looks(at: NDArray[np.int64]) -> NDArray[np.float64]:
        """(looks, K, n) logs of rates; small counts do not stand for extreme ratios."""
        rates = [(cumulated[:, at] - cumulated[:, at - w]) / w + 0.5 / w for w in widths]
        return np.log(np.stack(rates) + 0.05 * usual)

    then, now = looks(times), looks(np.array([k]))
    shape = then[:-1] - then[-1]
    away = (shape - (now[:-1] - now[-1])) / (shape.std(axis=2, keepdims=True) + 0.05)
    # In a known order: that of a partition is another one on another processor.
    alike = np.argsort((away**2).sum(axis=(0, 1)), kind="stable")[:analogs]
    chosen = rng.choice(alike, candidates)
    level = np.clip(now[-1] - then[-1][:, chosen], -_MOST_LOG, _MOST_LOG)
    level = level + spread * rng.standard_normal(level.shape)
    followed: NDArray[np.float64] = counts[:, times[chosen][:, None] + np.arange(n_bins)]
    return followed * np.exp(level)[..., None]


def seconds_within(
    recent: NDArray[np.float64], now: int, counts: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.float64]:
    """When within their bins requests come: as in a bin that had about so many.

    Args:
        recent: (m, 2) bins of requests that have come, ascending, and seconds within them.
        now: bin that has not ended.
        counts: (n_bins,) requests that come.
        rng: draws them.

    Returns:
        (sum of counts,) seconds from the beginnings of their bins, bin by bin.
    """
    ended = recent[: np.searchsorted(recent[:, 0], now)]
    if len(ended) == 0:
        return BIN_S * rng.random(int(counts.sum()))
    ends = np.searchsorted(ended[:, 0], np.arange(ended[0, 0], now + 1))
    there = np.diff(ends)
    first, there = ends[:-1][there > 0], there[there > 0]
    order = np.argsort(there, kind="stable")
    # Around the middle of those that had as many.
    fewer, most = (np.searchsorted(there[order], counts + k) for k in (0, 1))
    low = np.clip((fewer + most) // 2 - NEAR // 2, 0, max(0, len(order) - NEAR))
    chosen = order[low + rng.integers(min(NEAR, len(order)), size=len(counts))]
    like = np.repeat(chosen, counts)
    rows = first[like] + np.floor(rng.random(len(like)) * there[like]).astype(np.int64)
    # Neighbours of one that came are likely, not the same instant.
    moved = ended[rows, 1] + BIN_S * (rng.random(len(like)) - 0.5) / (1 + there[like])
    return np.clip(moved, 0, BIN_S * (1 - 1e-9))


def worst_sums(work: NDArray[np.float64]) -> NDArray[np.float64]:
    """(n,) sum over the worst `WORST` bins in a row of (n, n_bins) work."""
    width = min(WORST, work.shape[1])
    sums = np.concatenate([np.zeros((len(work), 1)), np.cumsum(work, axis=1)], axis=1)
    return (sums[:, width:] - sums[:, :-width]).max(axis=1)


def _means(lengths: NDArray[np.int64]) -> tuple[float, float]:
    prompt, output = lengths.mean(axis=0).tolist()
    return prompt, output
