"""A model that was built without values gets them, on each rank those of the rank's own part."""
