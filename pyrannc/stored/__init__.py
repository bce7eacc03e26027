"""Tensors on disk, by name: the files of save(), and those in the layout of Hugging Face."""
