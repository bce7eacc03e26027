"""Other people's loops with wrapped models: each is imported by its name, and starts nothing."""
