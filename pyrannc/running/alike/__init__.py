"""What all ranks do and pass alike, compared in each call."""
