"""Benchmarks of omq next to pyzmq, pyomq and bare sockets: `python -m bench` lists them."""
