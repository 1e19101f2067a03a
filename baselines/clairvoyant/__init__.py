"""The least GPU time that could serve an episode, with the future known: docs/clairvoyant.md."""
