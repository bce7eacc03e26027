"""A plan that runs: the calls of a wrapped model, on all ranks."""
