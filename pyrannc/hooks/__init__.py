"""Hooks of the model's modules: which are part of the captured model, and which are called."""
