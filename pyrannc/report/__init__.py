"""What steps took, beside what was predicted."""
