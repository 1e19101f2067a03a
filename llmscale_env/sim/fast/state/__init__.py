"""The arrays of an episode, and how they are reached.

`records` and its four neighbours say what a record holds, `layout` lays the records out, `reset` fills
them for time 0, and `memory` finds a field. `lists` and `structures` are linked lists and heaps in them.
"""
