"""omq's broker beside others: each a real server on loopback, driven by the better of two clients."""
