"""What an episode leaves behind: every request, every interval, every order, and a summary."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from llmscale_env._writing import replace_files
from llmscale_env.control.unfinished_work import lost_at_horizon
from llmscale_env.control.results.region_result import regions_of_instances
from llmscale_env.scenarios.schema import Scenario
from llmscale_env.sim.machine_metrics import summarise_cluster, time_integral
from llmscale_env.sim.metrics import (
    JOINT,
    OUTCOMES,
    Outcome,
    RequestColumns,
    judge,
    latencies,
    summarise_columns,
)
from llmscale_env.workload.requests import PS_PER_S, RequestTable

if TYPE_CHECKING:
    from pandas import DataFrame

POOL_COLUMNS = ("active", "draining", "loads", "stops", "kv_use")
"""Columns `POOL/...` that the series must have for every pool."""


@dataclass(frozen=True, eq=False)
class EpisodeResult:
    """One episode of a scenario under one policy. Made by `EpisodeResult.from_columns`.

    Attributes:
        requests: a row per arrival, in order of arrival: `id` (row of the request table),
            `arrival_s`, `llm`, `slo_class`, `input_tokens`, `output_tokens`, `outcome` ("on_time",
            "late", "rejected", "unfinished"), `queued_s` (to the first admission), `ttft_s`,
            `itl_mean_s`, `itl_max_s`, `e2e_s`, `preemptions`, `evictions`, `restarts` (after
            failures), `instance` (the last one that admitted it, -1 if none did). Where there are several
            regions, `region` of the client and `served_in`; where a pool has a prefix cache,
            `cached_tokens` (of the prompt, found at the first admission). A time that has not come is NaN.
        series: a row per control interval, as it stood or what it had brought when it ended.
            `time_s` is that end; the other columns are the run loop's.
        summary: numbers by key, see below.
        decisions: the commands given, one per interval, as plain dicts.
        scenario: its name.
        policy: its name.
        seed: of the requests.
        class_groups: names of the classes that are shown together, by the group's; a class alone is one.

    The keys of `summary`. For each GROUP, which is a class by its name, or "joint" for all classes
    (and `LLM/CLASS` and `LLM/joint` where there are several LLMs), `GROUP/METRIC` with:

    | metric | unit | what |
    |---|---|---|
    | arrivals | requests | that came before the horizon |
    | on_time, late, rejected, unfinished | requests | how they ended; they add up to arrivals |
    | slo_attainment | share | on time, of arrivals (1 where none counts, as the next three) |
    | weighted_slo_attainment | share | the same, each arrival counted with its class's weight |
    | ttft_attainment | share | first token in time, of arrivals |
    | itl_attainment | share | finished with the ITL within its target, of arrivals |
    | ttft_s_mean, _p50, _p90, _p99, _max | s | of requests with a first token |
    | itl_s_mean, _p50, _p90, _p99, _max | s | of finished requests with two tokens or more |
    | e2e_s_mean, _p50, _p90, _p99, _max | s | of finished requests |
    | goodput_requests_per_s, goodput_tokens_per_s | 1/s | on-time requests and their output tokens |
    | throughput_requests_per_s, throughput_tokens_per_s | 1/s | finished requests; all tokens emitted |
    | throughput_requests_per_instance_s | 1/s | finished, per instance-second in service |
    | throughput_tokens_per_instance_s | 1/s | tokens, per instance-second in service |
    | preemptions, evictions | times | that happened to its requests |
    | cached_tokens_mean | tokens | of a prompt, in the prefix cache at first admission (`v1` pools) |

    Under `reward.prices` requests that the horizon cuts off while they can still be in time are no part of
    shares. `on_time_share` is NaN in place of a 1 that rests on no request; tables show "-". Quantiles of
    "joint" mix classes with different targets, and no table shows them.

    Latencies are NaN where no request has one; no other value ever is. A request's ITL is its mean,
    or its largest where the scenario's target holds for that (`itl_statistic`). The instances of an
    LLM serve all its classes: "per instance" is over all of them.

    For the cluster `METRIC`, and for each pool `pool/POOL/METRIC`, with:

    | metric | unit | what |
    |---|---|---|
    | gpu_seconds, gpu_hours | s, h | billed: from the start of loading to the end of draining |
    | gpus_mean | GPUs | billed, over the horizon |
    | instances_mean | instances | in service (active or draining), over the horizon |
    | scale_ups, scale_downs, scaling_actions | instances | started, stopped, both |
    | hysteresis | ratio | scaling_actions over scale_ups (Chiron, section 2.3) |
    | loads_ssd, loads_host, loads_multicast | loadings | begun, by source |
    | utilisation | share | time in an iteration over time in service |
    | billed_utilisation | share | GPU-seconds in an iteration over those billed |
    | kv_use_mean | share | KV memory of active instances in use |
    | prefix_hit_rate | share | prompt tokens found in the prefix cache (where there is one) |

    Time in service and KV use are integrated over what was seen at the ends of the intervals.

    Where pools have regions, spot VMs or rules of scaling, for the cluster and each pool besides:

    | metric | unit | what |
    |---|---|---|
    | instance_hours | h | GPU-hours billed over GPUs of an instance: from the order to spot again |
    | spot_gpu_hours | h | of VMs that are leased out with the pool's LLM |
    | waste_own_gpu_hours, waste_others_gpu_hours | h | until VMs of its own, of others, served |
    | reclaims_own, reclaims_others, donations | VMs | taken from own, from others'; given back |
    | looks_out, looks_in | times | that a request which reached its region has changed a pool |

    and of every class, `LLM/CLASS`, `region/REGION/CLASS` and `region/REGION/LLM/CLASS` (regions of
    clients): `ttft_s_p50`, `ttft_s_p95`, `e2e_s_p50`, `e2e_s_p95`; of those with a region also `requests`
    (that arrived).

    Of the episode: `horizon_s`; `reward` (sum over the intervals) and `cost/PART` (its parts, if the
    series has them); `leftover_gpu_seconds` (that serving the work left over would take);
    `clipped` (orders cut down to what is possible).
    """

    requests: DataFrame
    series: DataFrame
    summary: dict[str, float]
    decisions: list[dict[str, Any]]
    scenario: str
    policy: str
    seed: int
    class_groups: dict[str, tuple[str, ...]]

    @classmethod
    def from_columns(
        cls,
        *,
        scenario: Scenario,
        policy: str,
        seed: int,
        requests: RequestColumns,
        series: Mapping[str, Sequence[Any]],
        decisions: Sequence[Mapping[str, Any]],
        gpu_s: ArrayLike,
        busy_s: ArrayLike,
        loads_by_source: ArrayLike,
        leftover_gpu_s: float = 0.0,
        clipped: int = 0,
        extra: Mapping[str, float] | None = None,
        frame: DataFrame | None = None,
    ) -> EpisodeResult:
        """From what the run loop has collected when the horizon is reached.

        Args:
            scenario, policy, seed: what was run.
            requests: of all that have arrived.
            series: columns by name, a value per interval: `time_s`, for every pool `POOL/active`,
                `POOL/draining`, `POOL/loads`, `POOL/stops` and `POOL/kv_use`, and any others.
            decisions: one per interval.
            gpu_s: (P,) GPU-seconds billed by pool.
            busy_s: (P,) instance-seconds in an iteration by pool.
            loads_by_source: (P, 3) loadings in the order of `LoadSource`.
            leftover_gpu_s: of the work left over.
            clipped: orders that were cut down.
            extra: more entries for the summary.
            frame: `requests` of the result; None: a short one of these columns, in any order, with
                `arrival_s`, `llm`, `slo_class`, `region`, `served_in`, `outcome`, `ttft_s`, `itl_s`,
                `e2e_s` (float32), `output_tokens`, `preemptions`, `evictions`.

        Raises:
            ValueError: a column of `series` is missing or of another length, or the arrays do not fit (see
                `sim.metrics`).
        """
        import pandas as pd

        columns = _columns(series, scenario)
        summary = {
            "horizon_s": float(scenario.horizon_s),
            **{
                name: float(np.sum(values))
                for name, values in columns.items()
                if name == "reward" or name.startswith("cost/")
            },
            "leftover_gpu_seconds": float(leftover_gpu_s),
            "clipped": float(clipped),
        }
        pools = scenario.fleet.pools
        serving_s = [_in_service(columns, pool.name, pool.initial_instances) for pool in pools]
        summary |= summarise_cluster(
            pool_names=[pool.name for pool in pools],
            gpus=[pool.tp for pool in pools],
            gpu_s=gpu_s,
            busy_s=busy_s,
            serving_s=serving_s,
            kv_use=[_kv_use(columns, pool.name) for pool in pools],
            scale_ups=[columns[f"{pool.name}/loads"].sum() for pool in pools],
            scale_downs=[columns[f"{pool.name}/stops"].sum() for pool in pools],
            loads_by_source=loads_by_source,
            horizon_s=scenario.horizon_s,
        )
        # Instances that swap serve no LLM in particular.
        swapping = any(pool.swaps_to for pool in pools)
        llms = scenario.fleet.llms
        of_llm = [llms.index(pool.llm) for pool in pools]
        summary |= summarise_columns(
            requests,
            scenario.classes,
            llms,
            scenario.horizon_s,
            instance_s=None if swapping else np.bincount(of_llm, serving_s, minlength=len(llms)),
            groups=scenario.named_groups,
            decided=scenario.reward.prices is not None,
            cached=bool(scenario.fleet.caching_pools),
        )
        summary |= {name: float(value) for name, value in (extra or {}).items()}
        return cls(
            requests=_short_frame(requests, scenario) if frame is None else frame,
            series=pd.DataFrame(columns),
            summary=summary,
            decisions=[dict(decision) for decision in decisions],
            scenario=scenario.name,
            policy=policy,
            seed=seed,
            class_groups={
                name: tuple(scenario.classes[c].name for c in rows)
                for name, rows in scenario.class_groups.items()
            },
        )

    @property
    def groups(self) -> list[str]:
        """Groups of the summary: classes, "joint", and those of each LLM where there are several."""
        return [key.removesuffix("/arrivals") for key in self.summary if key.endswith("/arrivals")]

    def table(self) -> DataFrame:
        """The summary's groups as rows, their metrics as columns."""
        import pandas as pd

        rows = {}
        for group in self.groups:
            names = [key.removeprefix(f"{group}/") for key in self.summary]
            rows[group] = {
                name: self.summary[f"{group}/{name}"]
                for name in names
                if "/" not in name and f"{group}/{name}" in self.summary
            }
        return pd.DataFrame.from_dict(rows, orient="index")

    # ---- files ----

    def to_csv(self, folder: str | Path) -> list[Path]:
        """Write requests.csv, series.csv, summary.csv and decisions.jsonl; returns their paths.

        summary.csv is in long form (scenario, policy, seed, key, value), so that those of many
        episodes can be put below each other. The folder is made if need be. Each file is written
        beside its place and then moved there, the first once all are written, so there is never
        half of one.
        """
        import pandas as pd

        where = Path(folder)
        where.mkdir(parents=True, exist_ok=True)
        summary = pd.DataFrame({"key": self.summary.keys(), "value": self.summary.values()})
        for k, name in enumerate(("scenario", "policy", "seed")):
            summary.insert(k, name, getattr(self, name))
        lines = [json.dumps(decision, default=_plain) for decision in self.decisions]
        texts = {
            "requests.csv": self.requests.to_csv(index=False),
            "series.csv": self.series.to_csv(index=False),
            "summary.csv": summary.to_csv(index=False),
            "decisions.jsonl": "".join(line + "\n" for line in lines),
        }
        return replace_files(
            {
                where / name: partial(Path.write_bytes, data=text.encode())
                for name, text in texts.items()
            }
        )

    def plot(self, path: str | Path) -> Path:
        """Draw the episode: arrivals, requests waiting, instances per pool, SLO attainment.

        The suffix of `path` says which kind of file (.png, .svg, .pdf).
        """
        from llmscale_env.control.results.episode_plot import draw_episode

        return draw_episode(self, Path(path))

    # ---- words ----

    def __str__(self) -> str:
        s = self.summary
        width = max(len(group) for group in ("group", *self.groups))
        heads = ["arrivals", "on time", "late", "rejected", "unfin.", "SLO"]
        heads += ["TTFT p50", "p99 s", "ITL p50", "p99 s", "good/s"]
        lines = [
            f"{self.scenario}, policy {self.policy}, seed {self.seed}: {s['horizon_s']:g} s",
            f"{'group':<{width}} " + " ".join(f"{head:>8}" for head in heads),
        ]
        for group in self.groups:
            cells = [f"{s[f'{group}/{name}']:.0f}" for name in ("arrivals", *OUTCOMES)]
            share = 100 * on_time_share(s, group)
            cells.append("-" if math.isnan(share) else f"{share:.1f}%")
            # Quantiles over classes with different targets say nothing of any of them.
            mixed = group.rpartition("/")[2] == JOINT and len(self.class_groups) > 1
            for name in ("ttft_s_p50", "ttft_s_p99", "itl_s_p50", "itl_s_p99"):
                cells.append("-" if mixed else _number(s[f"{group}/{name}"]))
            cells.append(_number(s[f"{group}/goodput_requests_per_s"]))
            lines.append(f"{group:<{width}} " + " ".join(f"{cell:>8}" for cell in cells))
        lines.append(
            f"GPU-hours {s['gpu_hours']:.2f} (mean {s['gpus_mean']:.1f} GPUs, "
            f"{100 * s['utilisation']:.0f}% busy, KV {100 * s['kv_use_mean']:.0f}%), "
            f"{s['scale_ups']:.0f} up, {s['scale_downs']:.0f} down "
            f"(hysteresis {s['hysteresis']:.2f}), loads {s['loads_ssd']:.0f} SSD "
            f"{s['loads_host']:.0f} host {s['loads_multicast']:.0f} multicast, "
            f"{s[f'{JOINT}/preemptions']:.0f} preemptions, {s[f'{JOINT}/evictions']:.0f} evictions"
        )
        if "prefix_hit_rate" in s:
            lines[-1] += f", prefix hits {100 * s['prefix_hit_rate']:.1f}%"
        if "reward" in s:
            lines[-1] += f"; reward {s['reward']:.3f}"
        return "\n".join(lines)


def on_time_share(summary: Mapping[str, Any], group: str) -> float:
    """`slo_attainment` of a group as tables show it: NaN where no request of it has been judged.

    Without arrivals the summary has 1, and so it has, under prices, where the horizon cut all requests off
    while they could still be in time.
    """
    share = float(summary[f"{group}/slo_attainment"])
    judged = summary.get(f"{group}/arrivals", 1) - summary.get(f"{group}/unfinished", 0)
    return math.nan if judged == 0 and share == 1 else share


def _columns(series: Mapping[str, Sequence[Any]], scenario: Scenario) -> dict[str, NDArray[Any]]:
    needed = ["time_s"]
    needed += [f"{pool.name}/{name}" for pool in scenario.fleet.pools for name in POOL_COLUMNS]
    for name in needed:
        if name not in series:
            raise ValueError(f"series[{name!r}] is missing; there are {sorted(series)}")
    columns = {name: np.asarray(values) for name, values in series.items()}
    length = len(columns["time_s"])
    for name, column in columns.items():
        if column.shape != (length,):
            raise ValueError(
                f"series[{name!r}]: expected {length} values as in time_s, got shape {column.shape}"
            )
    return columns


def _in_service(columns: Mapping[str, NDArray[Any]], pool: str, initial: int) -> float:
    """Instance-seconds active or draining."""
    instances = columns[f"{pool}/active"] + columns[f"{pool}/draining"]
    return float(time_integral(instances, columns["time_s"], initial))


def _kv_use(columns: Mapping[str, NDArray[Any]], pool: str) -> float:
    """Mean over the ends of the intervals, weighted by the active instances there; at most 1."""
    weight = columns[f"{pool}/active"].astype(np.float64)
    if weight.sum() == 0:
        return 0.0
    # What draining instances hold is counted too, over the memory of the active ones.
    return float(np.average(np.minimum(columns[f"{pool}/kv_use"], 1.0), weights=weight))


def request_frame(
    requests: RequestTable, results: NDArray[Any], scenario: Scenario, horizon_ps: int
) -> DataFrame:
    """`EpisodeResult.requests`, from the table and its RESULT_DTYPE at the horizon."""
    import pandas as pd

    lost = lost_at_horizon(scenario, requests, results, horizon_ps)
    how = (scenario.classes, horizon_ps, scenario.itl_statistic)
    verdicts = judge(requests, results, *how, lost)
    came = verdicts.outcome != Outcome.NOT_ARRIVED

    def named(codes: NDArray[Any], names: Sequence[str]) -> Any:
        return pd.Categorical.from_codes(codes[came], categories=list(names))

    measured = {name: column[came] for name, column in latencies(requests, results).items()}
    places = {}
    if len(scenario.region_names) > 1:
        names = scenario.region_names
        served_in = regions_of_instances(scenario, results["instance"])
        places = {"region": named(requests.region, names), "served_in": named(served_in, names)}
    counted = ["preemptions", "evictions", "restarts", "instance"]
    if scenario.fleet.caching_pools:
        counted.append("cached_tokens")
    return pd.DataFrame(
        {
            "id": np.flatnonzero(came),
            "arrival_s": requests.arrival_ps[came] / PS_PER_S,
            "llm": named(requests.llm, requests.llm_names),
            "slo_class": named(requests.slo_class, requests.class_names),
            "input_tokens": requests.input_tokens[came],
            "output_tokens": requests.output_tokens[came],
            **places,
            "outcome": named(verdicts.outcome, OUTCOMES),
            **measured,
            **{name: results[name][came] for name in counted},
        }
    )


def _short_frame(requests: RequestColumns, scenario: Scenario) -> DataFrame:
    import pandas as pd

    regions = list(scenario.region_names)
    served_in = regions_of_instances(scenario, requests.instance)
    named = {
        "llm": (requests.llm, list(scenario.fleet.llms)),
        "slo_class": (requests.slo_class, [c.name for c in scenario.classes]),
        "region": (requests.region, regions),
        "served_in": (served_in, regions),
        "outcome": (requests.outcome, list(OUTCOMES)),
    }
    plain = ["ttft_s", "itl_s", "e2e_s", "output_tokens", "preemptions", "evictions"]
    if scenario.fleet.caching_pools:
        plain.append("cached_tokens")
    return pd.DataFrame(
        {
            "arrival_s": requests.arrival_s,
            **{name: pd.Categorical.from_codes(*given) for name, given in named.items()},
            **{name: getattr(requests, name) for name in plain},
        },
        copy=False,
    )


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3g}"


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):  # NumPy's scalars and arrays
        return value.tolist()
    return str(value)
