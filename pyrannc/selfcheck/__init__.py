"""The proof that a captured graph computes what the model does."""
