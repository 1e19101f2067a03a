"""The main claims of a paper: what its abstract, introduction and conclusion promise, and what became of it.

A paper's folder has a module `headlines` with `HEADLINES`, and `LEARNT`: what we found that the paper does
not say, a sentence or three each.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from experiments.harness.claims import Claim


@dataclass(frozen=True)
class Headline:
    """A main claim, judged by the claim of one experiment.

    Attributes:
        where: in the paper, as "abstract".
        says: what it says, in our words.
        experiment: name of the experiment.
        sentence: of its claim.
        why: where it does not reproduce: the setting nearest to the claim, and the number there; the claim's
            own reason if left out.
    """

    where: str
    says: str
    experiment: str
    sentence: str
    why: str = ""


def headlines(paper: str) -> tuple[Headline, ...]:
    """Those of a paper; none where its folder has no such module."""
    found: tuple[Headline, ...] = _of(paper, "HEADLINES")
    return found


def learnt(paper: str) -> tuple[str, ...]:
    """What the paper does not say."""
    found: tuple[str, ...] = _of(paper, "LEARNT")
    return found


def judged_by(headline: Headline, claims: Mapping[str, Sequence[Claim]]) -> Claim | None:
    """The claim of a headline, from those of all experiments; None where the experiment has not been run.

    Raises:
        ValueError: the experiment has no claim of that sentence.
    """
    if headline.experiment not in claims:
        return None
    for claim in claims[headline.experiment]:
        if claim.sentence == headline.sentence and not claim.question:
            return claim
    raise ValueError(
        f"experiments/PAPER/headlines.py: {headline.experiment} makes no claim {headline.sentence!r}"
    )


def _of(paper: str, name: str) -> tuple:
    module = f"experiments.{paper}.headlines"
    return tuple(getattr(importlib.import_module(module), name)) if find_spec(module) else ()
