"""What a wrapper looks like to others: names, signature, and the compiler around it."""
