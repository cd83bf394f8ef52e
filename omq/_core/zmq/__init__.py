"""The compiled part of `omq.zmq`: the calls of pyzmq's interface that run for every message, and their memory."""
