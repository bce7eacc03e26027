"""The first front end: traces by torch's tracer."""
