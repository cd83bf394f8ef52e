"""Measures omq's proxy next to libzmq's (through pyzmq) and pyomq's: `python -m bench.proxy`."""
