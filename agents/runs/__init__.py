"""Runs from outside: their folders, their ends, and what stands in their tables and pictures.

`folders` gives a folder to one command at a time, `remote_folders` brings one home, `files` reads and writes
what lies in it. `seeds` trains several runs side by side, `stopping` ends one in good order. `comparison` runs
policies on the same episodes and makes tables, `plots` draws them.
"""
