"""Learned against tuned autoscalers: the protocol, and what it shows.

| question | module |
|---|---|
| which workloads, of which split; one more trace | `family` |
| which settings of which policy compete | `knobs` (heuristics), `runs` (learned policies) |
| an episode as a row; the runs of a table | `protocol` |
| interquartile means, intervals, probability of improvement | `statistics` |
| GPU-hours at matched attainment | `matched` |
| which setting a policy is given, what it does; which training is used | `standings`; `choices` |
| where a knob's range ends, and whether it was turned far enough | `knob_ends` |
| who wins | `verdicts` |
| what is taken away or made worse; a block of what is seen | `ablations`; `blind` |
| schedules found with foresight | `hindsight` |
| the pictures | `pictures`, `study_window` |
"""
