"""Helpers that programs import from `zmq.utils`."""
