"""Shapes of the catalog's files, and of its answers. Unknown keys are an error; every source must be named in its file."""
