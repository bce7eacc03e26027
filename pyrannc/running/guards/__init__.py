"""Guards: what a later call shares with the captured one, or is captured anew, or is refused."""
