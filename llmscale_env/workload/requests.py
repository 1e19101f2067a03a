"""The table of requests of one episode: a structure of arrays sorted by arrival.

It is the only place where an episode's randomness ends up. The engines draw nothing, so the same
table gives the same episode whichever policy runs.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from llmscale_env.workload.prefixes import Prefixes, spans_of
from llmscale_env.workload.whole import whole_numbers

if TYPE_CHECKING:
    from llmscale_env.workload.days import PastRequests

PS_PER_S = 1_000_000_000_000
"""Picoseconds per second: engine time is an int64 count of picoseconds."""

TOO_LATE_PS = 2**62
"""Times of the engines are below it, so that sums of two of them fit 64 bits."""

WEEK_S = 604_800.0

COLUMNS: dict[str, type[np.signedinteger[Any]]] = {
    "arrival_ps": np.int64,
    "llm": np.int16,
    "region": np.int16,
    "slo_class": np.int16,
    "input_tokens": np.int32,
    "output_tokens": np.int32,
    "predicted_output_tokens": np.int32,
}
"""Of a `RequestTable`: what each request has, with its type."""


@dataclass(frozen=True)
class RequestTable:
    """Requests sorted by arrival; row number is the request's id.

    Attributes:
        arrival_ps: (n,) int64, arrival in picoseconds, never decreasing, at least 0.
        llm: (n,) int16, index into `llm_names`.
        region: (n,) int16, region of the client, index into `region_names`.
        slo_class: (n,) int16, index into `class_names`.
        input_tokens: (n,) int32, prompt tokens, at least 1.
        output_tokens: (n,) int32, tokens that will be generated, at least 1. Known to the engines
            only; routers and policies never see it for an unfinished request.
        predicted_output_tokens: (n,) int32, what a predictor says, at least 1.
        llm_names, class_names, region_names: the names behind the indices.
        failures: (k, 2) int64, when (picoseconds) which instance fails, in order of time: what else
            chance does to an episode.
        salt: seed (64 bits) of the hashes by which engines find network latencies and reclaim times.
        history: requests that came before the episode, its times counted from the earliest that are known of;
            None: nothing is known.
        past: what came before the episode where it is counted and not drawn, in place of `history`.
        clock_s: time of the week at time 0, in [0, 604800), Monday 0 h being 0; the time of day where the
            workload has no weekdays.
        prefixes: which of them begin with the same tokens; None: none do.

    Raises:
        ValueError: if a column has the wrong length or a value out of range (the message names the
            column, the row and the value).
    """

    arrival_ps: NDArray[np.int64]
    llm: NDArray[np.int16]
    region: NDArray[np.int16]
    slo_class: NDArray[np.int16]
    input_tokens: NDArray[np.int32]
    output_tokens: NDArray[np.int32]
    predicted_output_tokens: NDArray[np.int32]
    llm_names: tuple[str, ...] = field(default=("llm",))
    class_names: tuple[str, ...] = field(default=("default",))
    region_names: tuple[str, ...] = field(default=("region",))
    failures: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 2), np.int64))
    salt: int = 0
    history: RequestTable | None = None
    past: PastRequests | None = None
    clock_s: float = 0.0
    prefixes: Prefixes | None = None

    def __post_init__(self) -> None:
        n = len(self.arrival_ps)
        for name, dtype in COLUMNS.items():
            column = whole_numbers(name, getattr(self, name), dtype)
            if column.shape != (n,):
                raise ValueError(f"{name}: expected shape ({n},), got {column.shape}")
            column.setflags(write=False)
            object.__setattr__(self, name, column)
        failures = whole_numbers("failures", self.failures, np.int64).reshape(-1, 2)
        if (failures < 0).any() or (np.diff(failures[:, 0]) < 0).any():
            raise ValueError("failures: must be times and instances, none negative, by time")
        if len(failures) and failures[-1, 0] >= TOO_LATE_PS:
            raise ValueError(f"failures: {failures[-1, 0]} ps, must be below 2**62 (53 days)")
        failures.setflags(write=False)
        object.__setattr__(self, "failures", failures)
        if self.prefixes is not None and len(self.prefixes) != n:
            raise ValueError(f"prefixes: of {len(self.prefixes)} requests, must be of {n}")
        if n == 0:
            return
        self._refuse("arrival_ps", self.arrival_ps < 0, "must be at least 0")
        late = self.arrival_ps >= TOO_LATE_PS
        self._refuse("arrival_ps", late, "must be below 2**62 ps (53 days)")
        backwards = np.concatenate([[False], np.diff(self.arrival_ps) < 0])
        self._refuse("arrival_ps", backwards, "must not be before the arrival above it")
        for name in ("input_tokens", "output_tokens", "predicted_output_tokens"):
            self._refuse(name, getattr(self, name) < 1, "must be at least 1")
        for name, names in (
            ("llm", self.llm_names),
            ("region", self.region_names),
            ("slo_class", self.class_names),
        ):
            column = getattr(self, name)
            self._refuse(
                name, (column < 0) | (column >= len(names)), f"must be in 0..{len(names) - 1}"
            )
        if self.prefixes is not None:
            self.prefixes.check_inputs(self.input_tokens)

    def between(self, from_ps: int, to_ps: int) -> RequestTable:
        """Those of [from, to), times counted from there, without failures and what came before."""
        first, last = np.searchsorted(self.arrival_ps, (from_ps, to_ps))
        columns: dict[str, Any] = {name: getattr(self, name)[first:last] for name in COLUMNS}
        columns["arrival_ps"] = columns["arrival_ps"] - from_ps
        if self.prefixes is not None:
            columns["prefixes"] = self.prefixes.take(np.arange(first, last))
        none = np.zeros((0, 2), np.int64)
        clock_s = (self.clock_s + from_ps / PS_PER_S) % WEEK_S
        return replace(self, **columns, failures=none, history=None, past=None, clock_s=clock_s)

    def take(self, rows: NDArray[np.intp]) -> RequestTable:
        """Those in these rows (ascending); failures and history stay."""
        columns: dict[str, Any] = {name: getattr(self, name)[rows] for name in COLUMNS}
        if self.prefixes is not None:
            columns["prefixes"] = self.prefixes.take(rows)
        return replace(self, **columns)

    def followed_by(self, later: RequestTable) -> RequestTable:
        """This table and, behind it, a later one's requests.

        Raises:
            ValueError: one of them has prefixes and the other one has not, or names of the later ones do not
                go on from these (both are pieces of one table, or neither has prefixes).
        """
        columns: dict[str, Any] = {
            name: np.concatenate([getattr(self, name), getattr(later, name)]) for name in COLUMNS
        }
        if self.prefixes is not None and later.prefixes is not None:
            columns["prefixes"] = self.prefixes.followed_by(later.prefixes)
        elif (self.prefixes is None) != (later.prefixes is None):
            raise ValueError("prefixes: must be there in both tables, or in neither")
        return replace(self, **columns)

    def _refuse(self, column: str, bad: NDArray[np.bool_], rule: str) -> None:
        if bad.any():
            row = int(np.argmax(bad))
            raise ValueError(f"{column}[{row}] = {getattr(self, column)[row]}: {rule}")

    def __len__(self) -> int:
        return len(self.arrival_ps)

    @property
    def arrival_s(self) -> NDArray[np.float64]:
        """Arrivals in seconds."""
        return self.arrival_ps / PS_PER_S

    @classmethod
    def build(
        cls,
        arrival_s: ArrayLike,
        input_tokens: ArrayLike,
        output_tokens: ArrayLike,
        *,
        llm: ArrayLike = 0,
        region: ArrayLike = 0,
        slo_class: ArrayLike = 0,
        predicted_output_tokens: ArrayLike | None = None,
        prefix_of: ArrayLike | None = None,
        prefix_tokens: ArrayLike = 0,
        llm_names: tuple[str, ...] = ("llm",),
        class_names: tuple[str, ...] = ("default",),
        region_names: tuple[str, ...] = ("region",),
    ) -> RequestTable:
        """A table from seconds and token counts; scalars are repeated, order must be by arrival.

        `prefix_of` and `prefix_tokens` say which requests begin with the same tokens: see `spans_of`.
        """
        arrival = np.asarray(arrival_s, dtype=np.float64)
        if arrival.ndim != 1:
            raise ValueError(f"arrival_s: of shape {arrival.shape}, must be a list of numbers")
        n = len(arrival)
        if not np.isfinite(arrival).all():
            row = int(np.argmax(~np.isfinite(arrival)))
            raise ValueError(f"arrival_s[{row}] = {arrival[row]}: must be finite")
        predicted = output_tokens if predicted_output_tokens is None else predicted_output_tokens

        def column(name: str, given: ArrayLike, dtype: type[np.signedinteger[Any]]) -> NDArray:
            values = np.asarray(given)
            if values.shape not in ((), (1,), (n,)):
                raise ValueError(
                    f"{name}: of shape {values.shape}, must be a number or {n} of them"
                )
            return whole_numbers(name, np.broadcast_to(values, (n,)), dtype)

        inputs = column("input_tokens", input_tokens, np.int32)
        outputs = column("output_tokens", output_tokens, np.int32)
        prefixes = None
        if prefix_of is None and np.any(np.asarray(prefix_tokens) != 0):
            raise ValueError("prefix_tokens: needs prefix_of")
        if prefix_of is not None:
            owner = column("prefix_of", prefix_of, np.int64)
            tokens = column("prefix_tokens", prefix_tokens, np.int64)
            prefixes = spans_of(owner, tokens, inputs, outputs)
        return cls(
            arrival_ps=np.rint(arrival * PS_PER_S),  # checked there
            llm=column("llm", llm, np.int16),
            region=column("region", region, np.int16),
            slo_class=column("slo_class", slo_class, np.int16),
            input_tokens=inputs,
            output_tokens=outputs,
            predicted_output_tokens=column("predicted_output_tokens", predicted, np.int32),
            llm_names=tuple(llm_names),
            class_names=tuple(class_names),
            region_names=tuple(region_names),
            prefixes=prefixes,
        )


_NO = np.zeros(0, np.int64)
NO_REQUESTS = RequestTable(_NO, _NO, _NO, _NO, _NO, _NO, _NO)  # type: ignore[arg-type]
"""A table without rows."""
