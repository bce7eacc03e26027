"""Plans and runs as pages to look at. Nothing here needs torch."""
