"""Records of prefix caches (docs/engine.md, section 19), and the arrays of an episode that grow on their own.

Blocks are not kept one by one. An *extent* is a run of blocks of one sequence that bear their names at one
instance, all held by the same running requests, or all free: the code is in `serving.prefix_cache`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from llmscale_env.sim.spec import ClusterSpec
from llmscale_env.workload.prefixes import Prefixes

EXTENT = np.dtype(
    [
        ("owner", np.int64),  # name of the sequence
        ("inst", np.int32),
        ("lo", np.int32),  # blocks lo to hi - 1 of it
        ("hi", np.int32),
        ("refs", np.int32),  # running requests that hold them
        # among free extents, in order of release
        ("older", np.int32),
        ("newer", np.int32),
        # in a bucket of the hash table, in order of naming; of an extent not in use: the next such
        ("before", np.int32),
        ("after", np.int32),
        # the extent of lower blocks that the same running request made, -1: none
        ("made", np.int32),
        ("spare", np.int32),  # makes it a whole number of words
    ]
)

SPAN = np.dtype([("owner", np.int64), ("end", np.int64)])
"""A span of `Prefixes`."""

BLOCKS = np.dtype(
    [
        ("name", np.int64),
        ("span", np.int64),  # place of the first one
        ("n_spans", np.int32),
        ("hits", np.int32),  # blocks that it holds and has not made
        ("named", np.int32),  # blocks with a name: those, and those of the extents that it made
        ("made", np.int32),  # the last of these, -1: none
        ("cached", np.int64),  # tokens found at the first admission
        ("promised", np.int64),  # tokens found when a prefix-aware route sent it on
    ]
)
"""What a request has of a prefix cache."""


class Loose(NamedTuple):
    """Arrays of one episode, each of a length of its own."""

    extent: NDArray  # EXTENT: those ever used come first
    bucket: NDArray[np.int32]  # first extent of each bucket, -1: none; a power of two of them
    span: NDArray  # SPAN


def room_for_an_event(spec: ClusterSpec) -> int:
    """Most extents that one event can add: a boundary of the largest instance may name every block of it."""
    return max(
        (
            int(spec.profiles[pool.profile].kv_capacity_tokens) // pool.v1.block_tokens
            for pool in spec.pools
            if pool.v1 is not None and pool.v1.prefix_cache
        ),
        default=0,
    )


def loose_arrays(extents: int) -> Loose:
    """Empty ones. Memory of extents is not touched before they are used."""
    buckets = 1
    while 4 * buckets < extents:
        buckets *= 2
    return Loose(
        np.zeros(max(extents, 1), EXTENT), np.full(buckets, -1, np.int32), np.zeros(1, SPAN)
    )


def with_spans(loose: Loose, n: int, prefixes: Prefixes | None) -> Loose:
    """With the spans of later requests behind the first `n` that are there."""
    if prefixes is None:
        return loose
    spans = np.zeros(n + len(prefixes.owner) + 1, SPAN)
    spans[:n] = loose.span[:n]
    spans["owner"][n:-1], spans["end"][n:-1] = prefixes.owner, prefixes.end
    return loose._replace(span=spans)


def packed(loose: Loose, top: int) -> Loose:
    """A copy without the extents behind the first `top`, which have never been used."""
    return Loose(loose.extent[:top].copy(), loose.bucket.copy(), loose.span.copy())


def unpacked(loose: Loose, size: int) -> Loose:
    """A copy with room for `size` extents."""
    extent = np.zeros(size, EXTENT)
    extent[: len(loose.extent)] = loose.extent
    return Loose(extent, loose.bucket.copy(), loose.span.copy())


def check_lengths(glob: Any, saved: Loose) -> None:
    """Refuse packed arrays that are not as long as the episode's own record says.

    Raises:
        ValueError: names the array.
    """
    for name, least, most in (
        ("extent", glob["extent_top"], glob["extent_top"]),
        ("bucket", glob["bucket_mask"] + 1, glob["bucket_mask"] + 1),
        ("span", max(1, glob["n_spans"]), 2**31),
    ):
        n = len(getattr(saved, name))
        if not least <= n <= most:
            rule = f"at least {least}" if most > least else f"{least}"
            raise ValueError(f"{name}: {n} rows, must be {rule}")
