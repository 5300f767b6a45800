"""Conda installations and environments."""
