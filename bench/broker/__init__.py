"""omq's broker next to others: each a real server on loopback, driven by the better of two clients."""
