"""A device: its store, its sockets, and what it tells about itself."""
