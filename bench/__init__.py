"""Benchmarks of omq beside pyzmq, pyomq and bare sockets: `python -m bench` lists them."""
