"""The clients of a device: what sends to it, and what takes from it."""
