"""Traces of what a serving engine has served: from its logs, and from its metrics."""
