"""Descriptors: the epoll set of a socket, connections in it, and the thread that writes what was left behind."""
