"""Networks: how they are built, how they lie on disk, how they decide.

`algorithms` makes a learner of stable-baselines3 with the layers of `activations`. `store` writes networks as
numbers and text and reads them again. `decoding` turns logits into choices, for use and for export. A network
as a policy, with its observation and action, is `agents.learned`.
"""
