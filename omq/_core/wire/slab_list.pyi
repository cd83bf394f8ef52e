"""The memory of what a connection receives: all of it is for other compiled modules."""
