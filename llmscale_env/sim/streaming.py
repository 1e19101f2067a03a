"""Episodes whose requests come in pieces and are forgotten when they are done (docs/engine.md, 18)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from llmscale_env.sim.spec import ClusterSpec, RequestState
from llmscale_env.sim.spec.checks import check_requests
from llmscale_env.workload.requests import RequestTable


class Retired(NamedTuple):
    """Requests that were done and that the engine has forgotten.

    Attributes:
        ids: (k,) int64, ascending.
        results: (k,) RESULT_DTYPE, what became of them.
    """

    ids: NDArray[np.int64]
    results: NDArray[Any]


def check_same_cluster(
    digest: NDArray[np.uint8], spec: ClusterSpec, cluster: ClusterSpec | None
) -> None:
    """Refuse to restore an episode of another cluster.

    Args:
        digest: of the cluster whose episode it is.
        spec: the cluster in which it is to go on.
        cluster: that whose episode it is, if its times are others; None: `spec`.

    Raises:
        ValueError: the digest is not of it, or it differs from `spec` in more than times.
    """
    if not np.array_equal(digest, (cluster or spec).digest):
        raise ValueError("cluster: a saved episode of another cluster")
    if cluster is not None and not np.array_equal(cluster.untimed_digest, spec.untimed_digest):
        raise ValueError(
            "cluster: differs from that in which the episode is to go on in more than times"
        )


def check_streams(spec: ClusterSpec) -> None:
    """Refuse a cluster in which things flow over links: their flows are numbered by requests.

    Raises:
        ValueError: it has a network, split phases or weights that flow.
    """
    flows = spec.network is not None or spec.splits or any(p.weight_bytes > 0 for p in spec.pools)
    if flows:
        raise ValueError(
            "cluster: has flows (a network, split phases or weight_bytes), which are numbered by the "
            "requests of the whole episode"
        )


def names_of(requests: RequestTable, next_name: int) -> NDArray[np.int64]:
    """(n,) names of the sequences of a piece's requests; those of earlier pieces are below `next_name`.

    Raises:
        ValueError: the first of them is below it.
    """
    if requests.prefixes is None:
        return next_name + np.arange(len(requests))
    names = requests.prefixes.name
    if len(names) and names[0] < next_name:
        raise ValueError(
            f"prefixes.name[0] = {names[0]}: must be at least {next_name}, as those of earlier pieces are "
            "below it"
        )
    return names


def check_later(spec: ClusterSpec, requests: RequestTable, now_ps: int, last_ps: int) -> None:
    """Refuse a piece of requests that the cluster cannot serve, or that does not go on where it ended.

    Args:
        spec: the cluster.
        requests: the piece.
        now_ps: present time.
        last_ps: latest arrival so far, -1: none.

    Raises:
        ValueError: an arrival before either; an LLM, class or region that the spec does not have.
    """
    check_requests(spec, requests)
    if len(requests) == 0:
        return
    first_ps = int(requests.arrival_ps[0])
    if first_ps < max(now_ps, last_ps):
        raise ValueError(
            f"arrival_ps[0] = {first_ps}: must be at least {max(now_ps, last_ps)}, the present time "
            "and the latest arrival so far"
        )


def check_lengths(
    ids: NDArray[np.int64], output_tokens: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Both as whole numbers, side by side.

    Raises:
        ValueError: they are of different lengths, not whole, or an id stands twice.
    """
    found = []
    for name, values in (("ids", ids), ("output_tokens", output_tokens)):
        array = np.asarray(values)
        if array.ndim != 1 or not (array.dtype.kind in "iu" or len(array) == 0):
            raise ValueError(
                f"{name}: of shape {array.shape} and {array.dtype}, must be (n,) integers"
            )
        found.append(np.ascontiguousarray(array, np.int64))
    if len(found[0]) != len(found[1]):
        raise ValueError(
            f"output_tokens: {len(found[1])} of them, must be one for each of {len(found[0])} ids"
        )
    if len(np.unique(found[0])) < len(found[0]):
        raise ValueError("ids: one stands there twice")
    return found[0], found[1]


def check_imagined(
    ids: NDArray[np.int64],
    states: NDArray[np.int8],
    output_tokens: NDArray[np.int64],
    longest: NDArray[np.int64],
) -> None:
    """Refuse other lengths for requests that have none to come, and lengths that no memory holds.

    Args:
        ids: (n,) of the requests.
        states: (n,) `RequestState` of each, `FUTURE` if it is not known.
        output_tokens: (n,) their new lengths.
        longest: (n,) most that each could have.

    Raises:
        ValueError: names the first.
    """
    over = np.isin(states, (RequestState.FUTURE, RequestState.FINISHED, RequestState.REJECTED))
    if over.any():
        k = int(np.argmax(over))
        state = RequestState(int(states[k])).name
        raise ValueError(f"ids[{k}] = {ids[k]}: must be under way or waiting, is {state}")
    wrong = (output_tokens < 1) | (output_tokens > longest)
    if wrong.any():
        k = int(np.argmax(wrong))
        raise ValueError(
            f"output_tokens[{k}] = {output_tokens[k]}: must be in 1..{longest[k]}, what memory holds"
        )
