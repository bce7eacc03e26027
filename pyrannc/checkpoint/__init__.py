"""Checkpoints in a folder: every rank writes its part at once, and any job reads them."""
