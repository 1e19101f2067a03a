"""What studies of learned policies measure with.

| question | module |
|---|---|
| interquartile means, intervals, probability of improvement | `statistics` |
| GPU-hours at matched attainment | `matched` |
"""
