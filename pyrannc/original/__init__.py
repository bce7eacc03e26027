"""What RaNNC 0.7 had and called otherwise, so that its scripts and settings are understood."""
