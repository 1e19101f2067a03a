"""The least GPU time that could serve an episode, with the future known: docs/clairvoyant.md."""

from baselines.clairvoyant.bound import Bound, NotSupported, clairvoyant_bound

__all__ = ["Bound", "NotSupported", "clairvoyant_bound"]
