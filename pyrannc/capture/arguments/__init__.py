"""The arguments of a call: its tensors, which of them hold rows, and what cannot be captured."""
