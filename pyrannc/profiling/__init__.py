"""What operators and the parts of a step take, measured on this machine."""
