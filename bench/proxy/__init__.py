"""omq's proxy beside libzmq's (through pyzmq) and pyomq's: `python -m bench.proxy`."""
