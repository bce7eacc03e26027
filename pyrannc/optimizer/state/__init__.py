"""The state of the optimizers: by name, of a part, and of all ranks."""
