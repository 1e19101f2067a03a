"""Where the iteration times of an (LLM, GPU, tensor-parallel degree) are known from.

The form that they have is in `iteration_model`, those that were measured in a data file
(`iteration_data`); what nobody has measured comes from `roofline`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from llmscale_env.cluster.cards import (
    PLAIN_BYTES,
    GpuCard,
    LlmCard,
    base_of,
    gpu_card,
    llm_card,
    register_gpu,
    register_llm,
)
from llmscale_env.cluster.iteration_data import load_models
from llmscale_env.cluster.iteration_model import KINDS, IterationTimeModel
from llmscale_env.cluster.roofline import roofline_bands, roofline_model, shipped_efficiency

DEFAULT_ORDER = ("user", "end-to-end", "composed")
"""Which is taken where several exist: an end-to-end measurement is what a user sees."""

_CARRIED = "; measured on "


class NoSuchModelError(ValueError):
    """No iteration times of that (LLM, GPU, tp, kind); the message lists what there is."""


def iteration_time_model(
    llm: str | LlmCard,
    gpu: str | GpuCard,
    tp: int = 1,
    kind: str | None = None,
    *,
    data: str | Path | None = None,
) -> IterationTimeModel:
    """The iteration times of an (LLM, GPU, tensor-parallel degree).

    Args:
        llm: card or name.
        gpu: card or name.
        tp: tensor-parallel degree.
        kind: one of `KINDS`. Left out: end-to-end where it exists, else composed, else roofline.
        data: a data file written by `python -m llmscale_env.calibrate`, looked into before the
            shipped one.

    Raises:
        NoSuchModelError: `kind` was asked for and does not exist here.
        UnknownCardError, DataFileError, ValueError: unknown names, a bad file, a bad `tp`.
    """
    # A card passed as an object becomes known by its name, since a model carries names only.
    llm, gpu = register_llm(base_of(llm_card(llm))), register_gpu(gpu_card(gpu))
    llm.check_tp(tp)
    if kind is not None and kind not in KINDS:
        raise NoSuchModelError(f"kind = {kind!r}: must be one of {', '.join(KINDS)}")
    if kind == "roofline":
        return roofline_model(llm, gpu, tp)
    if gpu.times_of:
        return _over_other_links(llm, gpu, tp, kind, data)
    files = [load_models()] if data is None else [load_models(data), load_models()]
    for models in files:
        found = {m.kind: m for m in models if (m.llm, m.gpu, m.tp) == (llm.name, gpu.name, tp)}
        for choice in DEFAULT_ORDER if kind is None else (kind,):
            if choice in found:
                return found[choice]
    if llm.times_of:
        model = iteration_time_model(llm.times_of, gpu, tp, kind, data=data)
        if model.kind != "roofline":
            return replace(model, llm=llm.name, source=f"{model.source}{_CARRIED}{llm.times_of}")
    if kind is None:
        return roofline_model(llm, gpu, tp)
    there = sorted(
        {(m.tp, m.kind) for f in files for m in f if (m.llm, m.gpu) == (llm.name, gpu.name)}
    )
    listed = ", ".join(f"tp {t} {k}" for t, k in there) or "nothing"
    raise NoSuchModelError(
        f"kind = {kind!r}: {llm.name} on {gpu.name} has no such times at tp {tp}; measured: "
        f"{listed}; kind = 'roofline' always works"
    )


def basis(model: IterationTimeModel) -> str:
    """What a model's times rest on, for a cell of a table: measured, interpolated or roofline, and how sure.

    "interpolated" are times that were measured on other links or another LLM with the same layers. Of a
    roofline, the factors between which nine tenths of measured whole iterations are (`roofline_bands`).
    """
    measured = "sum of measured kernels" if model.kind == "composed" else "measured"
    llm, gpu = llm_card(model.llm), gpu_card(model.gpu)
    if model.kind == "roofline":
        bands = [f"{part} x {b.low:.1f} to {b.high:.1f}" for part, b in roofline_bands().items()]
        return f"roofline, {', '.join(bands)}"
    carried = bool(llm.times_of) and model.source.endswith(_CARRIED + llm.times_of)
    if carried or gpu.times_of:
        where = f"{llm.times_of if carried else llm.name} on {gpu.times_of or gpu.name}"
        return f"interpolated from {where} ({measured})"
    errors = [
        f"{part} {100 * model.errors[part].mean:.1f} %"
        for part in ("decode", "prefill")
        if part in model.errors
    ]
    return f"{measured} (fit off by {', '.join(errors)})" if errors else measured


def all_reduce_s_per_token(
    llm: str | LlmCard, gpu: str | GpuCard, tp: int, link_bytes_per_s: float
) -> float:
    """Seconds that the bytes of one token's all-reduces take in an iteration.

    Two all-reduces a layer, each sending 2 (N - 1) / N of a hidden state, at the share of a link's
    peak that this project's roofline is calibrated to.
    """
    card = llm_card(llm)
    sent = 2.0 * (tp - 1) / tp * card.hidden * PLAIN_BYTES
    gpu_card(gpu)  # an unknown name is an error here too
    return 2 * card.layers * sent / (link_bytes_per_s * shipped_efficiency()[0].link)


def _over_other_links(
    llm: LlmCard, gpu: GpuCard, tp: int, kind: str | None, data: str | Path | None
) -> IterationTimeModel:
    """Times of the card that `gpu` has its times of, plus what all-reduces over its own links take longer."""
    other = gpu_card(gpu.times_of)
    model = iteration_time_model(llm, other, tp, kind, data=data)
    if model.kind == "roofline":
        return roofline_model(llm, gpu, tp)
    own, its = (
        all_reduce_s_per_token(llm, card, tp, card.link_bytes_per_s(tp)) for card in (gpu, other)
    )
    extra = own - its

    def longer(tokens: tuple[int, ...], seconds: tuple[float, ...]) -> tuple[float, ...]:
        return tuple(s + extra * t for t, s in zip(tokens, seconds, strict=True))

    return replace(
        model,
        gpu=gpu.name,
        source=f"{model.source}; all-reduces over {gpu.link_bytes_per_s(tp) / 1e9:g} GB/s",
        decode_base_s=longer(model.decode_batch, model.decode_base_s),
        prefill_knot_s=longer(model.prefill_knot_tokens, model.prefill_knot_s),
        prefill_slope_s=model.prefill_slope_s + extra,
        mixed_knot_s=longer(model.mixed_knot_tokens, model.mixed_knot_s),
        mixed_slope_s=model.mixed_slope_s + extra,
        errors={},
    )
