"""Octets: frames, receive and send buffers, and the ciphers that seal frames."""
