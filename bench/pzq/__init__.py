"""What the store-and-forward device does a second, beside a stub of it that stores nothing."""
