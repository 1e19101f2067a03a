"""The environments in other libraries, one file each; `docs/examples.md` has what each reaches.

Each file learns for some minutes and prints the mean reward of the same test episodes before and after. The
files share only the command line (`settings`), so that one can be copied and changed.
"""
