"""Runs of plans before the first step, and the choice between them."""
