"""A training run from its first step to its last; `learner` puts it together.

It learns on scenarios that vary (`variety`), with prices that move (`lagrangian`), compared among episodes on
`same_arrivals`, perhaps from the copy of a policy (`cloning`, with `translation` of its commands).
`callbacks` validate and log meanwhile, `validation_score` says what a validation is worth, and `checkpoint`
is where a run goes on.
"""
