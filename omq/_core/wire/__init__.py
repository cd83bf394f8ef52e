"""The wire format: frames, receive and send buffers, and the ciphers that seal frames."""
