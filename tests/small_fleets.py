"""Changes that make multi-region small: a fleet that is counted easily, a day that is known."""

from __future__ import annotations

FEW_VMS = {
    "fleet.pools.*.max_instances": 9,
    "fleet.pools.*.initial_instances": 3,
    "fleet.pools.*.spot.initial": 3,
    "fleet.pools.*.scaling.least": 1,
    "fleet.pools.*.scaling.most": 9,
    "fleet.max_gpus": 288,
}
TUESDAY = {  # with a day of history from Monday 0 h on
    f"workload.streams.{stream}.arrivals.start_s": 0.0
    for stream in (
        "bloom-interactive",
        "llama-2-interactive",
        *(f"{llm}-{hours}h" for llm in ("bloom", "llama-2") for hours in (2, 6, 12)),
    )
}
A_QUARTER = {"workload.rate_scale": 0.25, **FEW_VMS, **TUESDAY}
