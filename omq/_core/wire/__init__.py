"""Octets: frames, the buffers that they arrive in, the batches that they leave in, and the ciphers that seal them."""
