"""The clients of a device: producers and consumers."""
