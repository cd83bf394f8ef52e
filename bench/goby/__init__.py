"""Measures the router of gobyd next to a router made of libzmq's proxy."""
