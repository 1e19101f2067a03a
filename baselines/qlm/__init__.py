"""QLM (Patke et al., "Queue Management for SLO-Oriented LLM Serving", SoCC 2024), and its baselines.

The first group of modules are plain functions and records, which know nothing of the simulator; the second
puts them to work.

| question | module |
|---|---|
| which requests form a group, where does a new arrival go | `groups` (section 4, Algorithm 1) |
| how long does a request, a group wait | `waiting` (section 6, Eq. 1 to 5; appendix A.1, Eq. 14 to 22) |
| what has been learnt of output lengths | `history` |
| what is to be scheduled, what is an order worth | `schedule` |
| which instance serves which group when | `programme` (section 7, Eq. 6 to 13), `search` beyond its size |
| where does SHEPHERD put LLMs and classes | `shepherd` |
| which solver runs, what if there is none | `baselines.solver` |
| | |
| which group lies in which shared queue | `book` |
| what the scheduler is told of a cluster | `problem` |
| QLM as a policy | `policy` |
| first come first served, earliest deadline first | `simple` |
| SHEPHERD as a policy | `shepherd_policy` |
"""
