"""Remakes the shipped tables from raw traces: same files in, same bytes out.

`python -m llmscale_env.traces build-tables source=DIR [to=DIR]`. The raw files are gzipped CSV with
the columns `arrival_time_s,input_tokens,output_tokens` (lengths and traces) or
`window_start_s,relative_rate,...` (rates); their names stand in the lists below.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from llmscale_env.workload.tables import DATA, About, LengthTable, write_rows

_AZURE = (
    "CC-BY 4.0",
    "Azure/AzurePublicDataset (b469a113), AzureLLMInferenceTrace_{}.csv; "
    "Patel et al., Splitwise, ISCA 2024",
)
_SERVEGEN = "Apache-2.0", "alibaba/ServeGen (f891d118), {}; Xiang et al., arXiv 2505.09999"
_SHAREGPT = (
    "Apache-2.0 (repository); conversations from ShareGPT",
    "project-etalon/etalon (d5f18de1), sharegpt_8k_filtered_stats_llama2_tokenizer.csv",
)

_LENGTHS: dict[str, tuple[str, str, str, str]] = {
    # name: (file, licence, source, what kind of data)
    "azure-conv": (
        "azure_conv_2023",
        _AZURE[0],
        _AZURE[1].format("conv"),
        "one production chat service, 58 min of 2023-11-16, all requests",
    ),
    "azure-code": (
        "azure_code_2023",
        _AZURE[0],
        _AZURE[1].format("code"),
        "one production code-completion service, 57 min of 2023-11-16, all requests",
    ),
    "sharegpt": (
        "sharegpt_lengths",
        *_SHAREGPT,
        "multi turn: input includes the history; Llama-2 tokens; output at most 1024, sum at "
        "most 8192",
    ),
    "sharegpt-single-turn": (
        "sharegpt_lengths",
        *_SHAREGPT,
        "derived: the rows of the multi-turn file that start a conversation (input not above the "
        "sum of the row before), filtered as vLLM's benchmark does (4 tokens or more, input at "
        "most 1024, sum at most 2048)",
    ),
    "arxiv": (
        "arxiv_summarization_lengths",
        "MIT",
        "microsoft/vidur (7d475133), arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv",
        "summaries of papers; Llama-2 tokens, sum at most 4096",
    ),
    "long-output": (
        "long_output_bwb_lengths",
        "Apache-2.0 (repository)",
        "project-etalon/etalon (d5f18de1), bwb_stats_llama2_tokenizer_filtered_v2.csv",
        "output longer than input and strongly correlated with it",
    ),
    "reasoning": (
        "servegen_deepseek_r1_lengths",
        _SERVEGEN[0],
        _SERVEGEN[1].format("deepseek-r1"),
        "25,000 pairs drawn from the published histograms of a DeepSeek-R1 service (100 % of its "
        "load)",
    ),
    "m-small": (
        "servegen_m_small_lengths",
        _SERVEGEN[0],
        _SERVEGEN[1].format("m-small"),
        "25,000 pairs drawn from the published histograms; 43 % of the load, a biased part",
    ),
    "m-large": (
        "servegen_m_large_lengths",
        _SERVEGEN[0],
        _SERVEGEN[1].format("m-large"),
        "25,000 pairs drawn from the published histograms; 63 % of the load, a biased part",
    ),
}

_COUNTS = {"azure-conv-2023": "azure-conv", "azure-code-2023": "azure-code"}
_PROFILES = {
    "m-small": "servegen_m_small_rate",
    "m-large": "servegen_m_large_rate",
    "deepseek-r1": "servegen_deepseek_r1_rate",
}
_DAYS = {"servegen-m-large": "m-large", "servegen-m-small": "m-small"}
_WEEK = (
    "sageserve-week",
    "sageserve_week_hourly.csv",
    "MIT",
    "shashwatj07/SageServe (0b95ca2d), read off the figures saved in its notebooks; Jaiswal et al., "
    "arXiv 2502.14617",
    "requests per minute in each hour of a week (hour 0: Monday 0 h, UTC by its daily peak), 3 regions "
    "together; iw: interactive, niw: non-interactive; models A to D as the source calls them; per model "
    "good to perhaps 20 % (iw) and a factor of 1.5 (niw), the sums to 3 %; "
    "flat: a constant, for what has no pattern",
)
_COUNT_BIN_S = 1.0
_COUNTS_PER_ROW = 60


def single_turn(
    input_tokens: NDArray[np.int64], output_tokens: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Rows that open a conversation, among turns in order whose input includes the history.

    A later turn holds the history, so its input exceeds the input plus output of the row before;
    a row that does not is the first of another conversation. (One that happens to be longer is
    taken for a later turn and left out.) The length filter is that of vLLM's benchmark.
    """
    opens = np.ones(len(input_tokens), dtype=bool)
    opens[1:] = input_tokens[1:] <= input_tokens[:-1] + output_tokens[:-1]
    return (
        opens
        & (input_tokens >= 4)
        & (output_tokens >= 4)
        & (input_tokens <= 1024)
        & (input_tokens + output_tokens <= 2048)
    )


def build_tables(source: Path, to: Path = DATA) -> list[Path]:
    """Write every table into `to`, from the raw files in `source`; the paths written.

    Raises:
        FileNotFoundError: if a raw file is missing (names it).
    """
    import pandas as pd

    def raw(name: str) -> pd.DataFrame:
        path = source / f"{name}.csv.gz"
        if not path.is_file():
            raise FileNotFoundError(f"source = {source}: {path.name} is missing there")
        return pd.read_csv(path)

    to.mkdir(parents=True, exist_ok=True)
    written = []
    for name, (file, licence, origin, kind) in _LENGTHS.items():
        frame = raw(file)
        x, y = (frame[c].to_numpy(dtype=np.int64) for c in ("input_tokens", "output_tokens"))
        if name == "sharegpt-single-turn":
            keep = single_turn(x, y)
            x, y = x[keep], y[keep]
        about: About = (
            ("name", name),
            ("source", origin),
            ("licence", licence),
            ("kind", kind),
            ("rows", str(len(x))),
        )
        table = LengthTable.from_pairs(x, y, about)
        outputs = [(f"output_bin_{k}", row) for k, row in enumerate(table.output_tokens)]
        written.append(to / f"lengths_{name}.csv")
        write_rows(written[-1], about, [("input_tokens", table.input_tokens), *outputs])
    for name, lengths in _COUNTS.items():
        file, licence, origin, kind = _LENGTHS[lengths]
        arrival_s = raw(file)["arrival_time_s"].to_numpy()
        counts = np.bincount((arrival_s / _COUNT_BIN_S).astype(np.int64))
        about = (
            ("name", name),
            ("source", origin),
            ("licence", licence),
            ("kind", f"{kind}; arrivals per bin from the first request on"),
            ("rows", str(len(arrival_s))),
            ("bin_s", str(_COUNT_BIN_S)),
        )
        rows = [
            (f"from_bin_{k}", counts[k : k + _COUNTS_PER_ROW])
            for k in range(0, len(counts), _COUNTS_PER_ROW)
        ]
        written.append(to / f"counts_{name}.csv")
        write_rows(written[-1], about, rows)
    profiles = []
    for name, file in _PROFILES.items():
        frame = raw(file)
        hour = (frame["window_start_s"] // 3600) % 24
        factors = frame["relative_rate"].groupby(hour).mean().to_numpy()
        profiles.append((name, factors / factors.mean()))
    written.append(to / "hour_factors.csv")
    about = (
        ("source", _SERVEGEN[1].format("rates of all clients per 600 s")),
        ("licence", _SERVEGEN[0]),
        ("kind", "mean relative rate by hour of the day, 0 to 23, local time"),
    )
    write_rows(written[-1], about, profiles)
    for name, profile in _DAYS.items():
        rates = raw(_PROFILES[profile])["relative_rate"].to_numpy()
        per_day = 86_400 // 600
        days = (rates / rates.mean()).reshape(-1, per_day)
        about = (
            ("name", name),
            ("source", _SERVEGEN[1].format(f"rates of all clients of {profile} per 600 s")),
            ("licence", _SERVEGEN[0]),
            (
                "kind",
                "relative rate by ten minutes, a row per day, local time; 0: an outage in the data",
            ),
        )
        written.append(to / f"days_{name}.csv")
        write_rows(written[-1], about, [(f"day_{k + 1}", row) for k, row in enumerate(days)])
    name, file, licence, origin, kind = _WEEK
    if not (source / file).is_file():
        raise FileNotFoundError(f"source = {source}: {file} is missing there")
    frame = pd.read_csv(source / file).sort_values("hour")
    series = [
        (column.lower().replace("_rpm_", "-"), frame[column].to_numpy())
        for column in frame.columns
        if "_rpm_" in column
    ]
    series.append(("flat", np.ones(len(frame))))
    written.append(to / f"rates_{name}.csv")
    about = (("name", name), ("source", origin), ("licence", licence), ("kind", kind))
    write_rows(written[-1], about, series)
    return written
