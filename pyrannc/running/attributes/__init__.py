"""Attributes of the modules of a wrapped model: what scripts set, and what forward() leaves."""
