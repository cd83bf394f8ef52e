"""A device: its store, its sockets, and its statistics."""
