"""Learning from recorded decisions alone: datasets as Minari keeps them, and two learners.

`data` lets policies play and writes what they did; `learners` has behaviour cloning and implicit Q-learning.
`python -m agents.offline` is the command line.
"""
