"""Learned policies: train them, evaluate them beside the reference policies, run them anywhere."""
