"""Parts of an observation: what each shows of a cluster, entry by entry (`base.Entry`).

`envs.observations` has their names and puts them together. `size_free` ones mean the same on clusters of
any size; the other files are named after what they show.
"""
