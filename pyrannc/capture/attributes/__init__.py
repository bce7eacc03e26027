"""What forward() may change in Python."""
