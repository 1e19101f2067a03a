"""The search behind `baselines.tune`: trials and their scores, episodes that are kept, budgets, samplers."""
