"""The second front end: torch.export."""
