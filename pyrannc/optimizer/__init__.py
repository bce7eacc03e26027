"""The user's optimizer: its parameters and state, its step, its loss scale."""
