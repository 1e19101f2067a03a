"""Claims that the paper's text lets one read in several ways."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Unpack

from agents.statistics import shown
from experiments.harness.claims import Claim, Verdict, Words, led_by


def least_first(claims: Iterable[Claim]) -> list[Claim]:
    """By what was measured, so that a whole shows the least of its equally good parts."""
    return sorted(claims, key=lambda claim: claim.ours.mean)


def read(sentence: str, parts: Sequence[Claim], **words: Unpack[Words]) -> Claim:
    """As `led_by`; the note also tells what the parts have measured that are not shown."""
    whole = led_by(sentence, parts, **words)
    others = "; ".join(
        f"{shown(part.ours.mean, 3)} {part.unit} ({part.sentence})"
        for part in parts
        if part.verdict is not Verdict.UNMEASURED and part.ours is not whole.ours
    )
    notes = (whole.note, f"read otherwise: {others}" if others else "")
    return replace(whole, note="; ".join(filter(None, notes)))
