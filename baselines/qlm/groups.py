"""Request groups: QLM's Algorithm 1, and where new arrivals go (section 4).

The paper clusters by k-means over LLM, SLO value and token statistics. Requests of different LLMs or SLO
values must never share a group, so those two features are scaled without bound: requests are first told
apart by them, and k-means runs on the token statistics within. On a line its optimum is exact
(`baselines.grouping.kmeans_1d`), so nothing is drawn and no start matters.

Ours, since the paper does not say it:

- Token statistics are the expected output of a request's class, then its input tokens. Each is cut into
  the most clusters, up to `max_clusters`, of which each needs `min_ratio` times the tokens of the one
  before (for inputs, expected output included: by Eq. 16 the batch that fits shrinks so). The best
  two clusters of a uniform or an exponential distribution are at a factor of 3.0 and 4.4, and less with the
  outputs added, so 4 leaves one distribution whole and takes mega prompts of some thousand tokens from
  conversations of some hundred. A plain k-means is `min_ratio = 1`.
- A new arrival goes to the youngest group of its kind, so that it passes nobody of its own kind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from baselines.grouping import in_steps, kmeans_1d

Split = Literal["repeated", "once"]


@dataclass(frozen=True)
class TokenClustering:
    """How requests of one LLM and SLO value are told apart by their tokens.

    Attributes:
        max_clusters: largest k of the k-means, for inputs and for expected outputs; 1: tokens do not
            matter.
        min_ratio: each cluster has so many times the mean tokens of the one before.
        resolution_tokens: inputs are told apart in steps of this.

    Raises:
        ValueError: a value out of range.
    """

    max_clusters: int = 2
    min_ratio: float = 4.0
    resolution_tokens: float = 16.0

    def __post_init__(self) -> None:
        if self.max_clusters < 1:
            raise ValueError(f"max_clusters = {self.max_clusters}: must be at least 1")
        if not self.min_ratio >= 1:
            raise ValueError(f"min_ratio = {self.min_ratio}: must be at least 1")
        if not self.resolution_tokens > 0:
            raise ValueError(f"resolution_tokens = {self.resolution_tokens}: must be positive")


@dataclass(frozen=True)
class Kind:
    """What the requests of a group have in common.

    Attributes:
        llm: index of the LLM.
        slo_s: TTFT target.
        output: cluster by expected output, from 0.
        input: cluster by input tokens, from 0.
    """

    llm: int
    slo_s: float
    output: int = 0
    input: int = 0


@dataclass(frozen=True, eq=False)
class RequestGroup:
    """Requests of one kind, first come first served.

    Attributes:
        kind: LLM, SLO value and token clusters.
        members: places of the requests in the arrays that the groups were made from.
    """

    kind: Kind
    members: NDArray[np.int64]


@dataclass(frozen=True)
class Bounds:
    """Where the token clusters of one (LLM, SLO value) end.

    Attributes:
        output: upper bounds of expected output, ascending, the last infinite.
        input: for each cluster by expected output, the upper bounds of input tokens, likewise.
    """

    output: tuple[float, ...] = (np.inf,)
    input: tuple[tuple[float, ...], ...] = ((np.inf,),)


@dataclass(frozen=True, eq=False)
class Grouping:
    """Request groups and the rule by which arrivals are classified into them.

    Attributes:
        groups: the one whose oldest request has the earliest deadline first.
        bounds: for each (LLM, SLO value); others have one cluster each.
        limits: largest number of requests of a group, for each LLM.
    """

    groups: tuple[RequestGroup, ...]
    bounds: Mapping[tuple[int, float], Bounds]
    limits: Mapping[int, int]

    def input_bounds(self, llm: int, slo_s: float, expected_output: float) -> NDArray[np.float64]:
        """Upper bounds of input tokens of the clusters of this LLM, SLO value and expected output.

        A request belongs to the first cluster whose bound is at least its input. This is what an engine
        that classifies arrivals between decisions needs.

        Returns:
            (clusters,) ascending, the last infinite.
        """
        bounds = self.bounds.get((llm, slo_s), Bounds())
        which = int(np.searchsorted(bounds.output, expected_output, side="left"))
        return np.array(bounds.input[which])


def size_limit(average_batch: float, delta: float = 4.0) -> int:
    """Largest number of requests in a group: delta times the average batch, at least 1.

    Raises:
        ValueError: delta outside 1..16 (section 8.3), or a batch that is not positive.
    """
    if not 1 <= delta <= 16:
        raise ValueError(f"delta = {delta}: must be in 1..16")
    if not (average_batch > 0 and np.isfinite(average_batch)):
        raise ValueError(f"average_batch = {average_batch}: must be positive and finite")
    return max(1, int(average_batch * delta))


def remaining_slo_s(now_s: float, arrival_s: ArrayLike, slo_s: float) -> float:
    """What is left of a group's SLO: that of its oldest waiting request, negative once it is late.

    Args:
        now_s: the time.
        arrival_s: of the group's waiting requests, at least one.
        slo_s: their TTFT target.

    Raises:
        ValueError: no request.
    """
    arrivals = np.asarray(arrival_s, np.float64)
    if arrivals.size == 0:
        raise ValueError("arrival_s is empty: a group without requests has no deadline")
    return float(slo_s - (now_s - arrivals.min()))


def make_groups(
    llm: ArrayLike,
    slo_s: ArrayLike,
    arrival_s: ArrayLike,
    input_tokens: ArrayLike,
    expected_output: ArrayLike,
    average_batch: float | Mapping[int, float],
    *,
    delta: float = 4.0,
    split: Split = "repeated",
    clustering: TokenClustering | None = None,
) -> Grouping:
    """Algorithm 1: groups of waiting requests.

    Args:
        llm: (n,) index of each request's LLM.
        slo_s: (n,) its TTFT target, positive.
        arrival_s: (n,) when it arrived; ties count in the order given.
        input_tokens: (n,) of its prompt.
        expected_output: (n,) mean output tokens of its LLM and class, learnt from history.
        average_batch: average running batch, for all LLMs or by LLM.
        delta: groups larger than delta times the average batch are split in half.
        split: "repeated": the loop visits the halves that it appends too, until none is too large. "once":
            it visits the clusters only, so that a half may still be too large.
        clustering: by tokens.

    Raises:
        ValueError: arrays of different lengths, a value out of range, an LLM without an average batch.
    """
    llms, slos, arrivals, inputs, outputs = _requests(
        llm, slo_s, arrival_s, input_tokens, expected_output
    )
    if split not in ("repeated", "once"):
        raise ValueError(f"split = {split!r}: must be 'repeated' or 'once'")
    rule = clustering or TokenClustering()
    limits: dict[int, int] = {}
    for m in np.unique(llms).tolist():
        limits[m] = size_limit(_batch_of(average_batch, m), delta)

    if len(llms) == 0:
        return Grouping((), {}, limits)
    order = np.argsort(arrivals, kind="stable")
    slo_values, slo_place = np.unique(slos, return_inverse=True)
    cell = llms * len(slo_values) + slo_place
    groups: list[RequestGroup] = []
    bounds: dict[tuple[int, float], Bounds] = {}
    by_cell = order[np.argsort(cell[order], kind="stable")]
    cells, first = np.unique(cell[by_cell], return_index=True)
    for key, members in zip(cells.tolist(), np.split(by_cell, first[1:]), strict=True):
        m, slo = key // len(slo_values), float(slo_values[key % len(slo_values)])
        out_label, out_bounds = _clusters(outputs[members], 0.0, rule)
        in_bounds: list[tuple[float, ...]] = []
        for o in range(len(out_bounds)):
            part = members[out_label == o]
            in_label, upper = _clusters(inputs[part], float(outputs[part].mean()), rule)
            in_bounds.append(upper)
            for i in range(len(upper)):
                for piece in _halves(part[in_label == i], limits[m], split):
                    groups.append(RequestGroup(Kind(m, slo, o, i), piece))
        bounds[m, slo] = Bounds(out_bounds, tuple(in_bounds))
    for group in groups:
        assert (llms[group.members] == group.kind.llm).all()
        assert (slos[group.members] == group.kind.slo_s).all()

    def urgency(group: RequestGroup) -> tuple[float, float, int, float, int, int]:
        kind, oldest = group.kind, float(arrivals[group.members[0]])
        return oldest + kind.slo_s, oldest, kind.llm, kind.slo_s, kind.output, kind.input

    return Grouping(tuple(sorted(groups, key=urgency)), bounds, limits)


@dataclass(frozen=True, eq=False)
class Classified:
    """Where new arrivals went.

    Attributes:
        group: (m,) group of each: an old one, or `old + i` for the i-th new one.
        new: kinds of the new groups.
    """

    group: NDArray[np.int64]
    new: tuple[Kind, ...]


def classify(
    grouping: Grouping,
    kinds: Sequence[Kind],
    sizes: ArrayLike,
    youngest_s: ArrayLike,
    llm: ArrayLike,
    slo_s: ArrayLike,
    arrival_s: ArrayLike,
    input_tokens: ArrayLike,
    expected_output: ArrayLike,
) -> Classified:
    """New arrivals into existing groups: the nearest by tokens of the same LLM and SLO value.

    Of several groups of its kind (halves of one cluster) an arrival joins the youngest. A group at
    `grouping.limits` takes no more; then a new group begins.

    Args:
        grouping: bounds and limits; its own groups do not matter here.
        kinds: of the groups that there are now.
        sizes: (groups,) requests that wait in each.
        youngest_s: (groups,) latest arrival in each; of equals the later one counts as the younger.
        llm, slo_s, arrival_s, input_tokens, expected_output: (m,) of the arrivals, see `make_groups`.

    Raises:
        ValueError: arrays of different lengths, a value out of range, an LLM without a limit.
    """
    llms, slos, arrivals, inputs, outputs = _requests(
        llm, slo_s, arrival_s, input_tokens, expected_output
    )
    size = np.asarray(sizes, np.int64)
    young = np.asarray(youngest_s, np.float64)
    if not len(kinds) == len(size) == len(young):
        raise ValueError(
            f"kinds, sizes and youngest_s have {len(kinds)}, {len(size)} and {len(young)} entries: "
            "must be one per group"
        )
    latest: dict[Kind, int] = {}
    for g in np.argsort(young, kind="stable").tolist():
        latest[kinds[g]] = g
    order = np.argsort(arrivals, kind="stable")
    of_kind: dict[Kind, list[NDArray[np.int64]]] = {}
    pair = np.unique(np.column_stack([llms, slos, outputs]), axis=0, return_inverse=True)
    for p, (m_, slo, expected) in enumerate(pair[0].tolist()):
        m = int(m_)
        if m not in grouping.limits:
            raise ValueError(f"llm = {m}: must be one of {sorted(grouping.limits)}")
        mine = order[pair[1].reshape(-1)[order] == p]
        cell = grouping.bounds.get((m, slo), Bounds())
        o = int(np.searchsorted(cell.output, expected, side="left"))
        label = np.searchsorted(cell.input[o], inputs[mine], side="left")
        for i in np.unique(label).tolist():
            of_kind.setdefault(Kind(m, slo, o, i), []).append(mine[label == i])
    group = np.full(len(llms), -1, np.int64)
    rank = np.empty(len(llms), np.int64)
    rank[order] = np.arange(len(llms))
    new: list[tuple[int, Kind, NDArray[np.int64]]] = []
    for kind, parts in of_kind.items():
        members = np.concatenate(parts)
        members = members[np.argsort(rank[members])]
        limit = grouping.limits[kind.llm]
        if kind in latest:
            room = max(0, limit - int(size[latest[kind]]))
            group[members[:room]] = latest[kind]
            members = members[room:]
        for begin in range(0, len(members), limit):
            piece = members[begin : begin + limit]
            new.append((int(rank[piece[0]]), kind, piece))
    new.sort(key=lambda entry: entry[0])
    for g, (_, _, piece) in enumerate(new):
        group[piece] = len(kinds) + g
    return Classified(group, tuple(kind for _, kind, _ in new))


# ---- parts ----


def _halves(members: NDArray[np.int64], limit: int, split: Split) -> list[NDArray[np.int64]]:
    """Lines 2 to 7 of Algorithm 1 for one cluster: the earlier half and the later half."""
    groups = [members]
    done: list[NDArray[np.int64]] = []
    visits = 1  # of the loop of the printed algorithm; more if it sees what it appends
    while groups:
        group = groups.pop(0)
        if len(group) > limit and (split == "repeated" or visits > 0):
            half = (len(group) + 1) // 2
            groups += [group[:half], group[half:]]
        else:
            done.append(group)
        visits -= 1
    return done


def _clusters(
    values: NDArray[np.float64], other_tokens: float, rule: TokenClustering
) -> tuple[NDArray[np.int64], tuple[float, ...]]:
    """The most clusters that differ by `rule.min_ratio`, and their upper bounds, the last infinite.

    Args:
        values: (n,) tokens, at least one.
        other_tokens: mean tokens that each request has besides.
        rule: when clusters are different.
    """
    steps, place = in_steps(values, rule.resolution_tokens)
    total = np.bincount(place, values)
    count = np.bincount(place)
    for k in range(min(rule.max_clusters, len(steps)), 1, -1):
        of_step = kmeans_1d(steps, count, k)
        mean = np.bincount(of_step, total) / np.bincount(of_step, count) + other_tokens
        if (mean[1:] < rule.min_ratio * mean[:-1]).any():
            continue
        label = of_step[place]
        # In the middle of the gap: each request of a cluster is classified into it again.
        cuts = [
            (float(values[label == c].max()) + float(values[label == c + 1].min())) / 2
            for c in range(k - 1)
        ]
        return label, (*cuts, np.inf)
    return np.zeros(len(values), np.int64), (np.inf,)


def _batch_of(average_batch: float | Mapping[int, float], llm: int) -> float:
    if not isinstance(average_batch, Mapping):
        return average_batch
    if llm not in average_batch:
        raise ValueError(
            f"average_batch has no entry for LLM {llm}; it has {sorted(average_batch)}"
        )
    return average_batch[llm]


def _requests(
    llm: ArrayLike,
    slo_s: ArrayLike,
    arrival_s: ArrayLike,
    input_tokens: ArrayLike,
    expected_output: ArrayLike,
) -> tuple[
    NDArray[np.int64],
    NDArray[np.float64],
    NDArray[np.float64],
    NDArray[np.float64],
    NDArray[np.float64],
]:
    llms = np.asarray(llm, np.int64)
    slos = np.asarray(slo_s, np.float64)
    arrivals = np.asarray(arrival_s, np.float64)
    inputs = np.asarray(input_tokens, np.float64)
    outputs = np.asarray(expected_output, np.float64)
    arrays = {
        "llm": llms,
        "slo_s": slos,
        "arrival_s": arrivals,
        "input_tokens": inputs,
        "expected_output": outputs,
    }
    if len({array.shape for array in arrays.values()}) > 1 or llms.ndim != 1:
        shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        raise ValueError(f"one value per request needed; shapes are {shapes}")
    for name, array in arrays.items():
        low, said = (0.0, "at least 0")
        if name == "arrival_s":
            low, said = -np.inf, "finite"
        bad = ~(np.isfinite(array) & (array >= low))
        if name == "slo_s":
            bad, said = bad | (array <= 0), "positive"
        if bad.any():
            raise ValueError(f"{name} = {array[bad][0]}: must be {said} and finite")
    return llms, slos, arrivals, inputs, outputs
