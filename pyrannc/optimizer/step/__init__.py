"""The steps of the optimizers: all that is arranged around one, in an order."""
