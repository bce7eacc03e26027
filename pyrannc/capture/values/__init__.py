"""What of a traced model depends on the values of tensors."""
