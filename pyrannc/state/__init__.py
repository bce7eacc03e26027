"""The model's tensors by name: who holds them, and their checkpoints."""
