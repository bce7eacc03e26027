"""From a model and one call to a graph that runs at any batch size."""
