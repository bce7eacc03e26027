"""generate() of a wrapped language model: its own loop, whose forward passes run on all ranks."""
