"""The operator's desk: what the command `llmscale` answers to an engineer with a trace and GPUs.

`command` finds the command line behind each word; `advise` ranks autoscalers on a trace and writes an
`answer`; `page` makes one HTML file of it, `compare` sets two side by side, `deploy` writes what runs the
winner; `serve` runs a policy in the shadow of a real cluster.
"""
