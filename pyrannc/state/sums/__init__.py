"""Numbers of tensors that ranks hold apart."""
