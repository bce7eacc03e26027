"""Graphs and the number of rows of the whole batch."""
