"""Measures the store-and-forward device next to a stub of it that stores nothing."""
