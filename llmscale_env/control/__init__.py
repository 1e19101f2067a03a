"""From a decision to the simulator and back: what a policy sees, may order, and is paid.

`view` is what one sees and `command` what one orders; `run` is the loop of every policy, over `simulation`.
`snapshot` and `as_command` are the same for environments, side by side. `reward` is the price, `results` what
remains, `forecast` what may come.
"""
