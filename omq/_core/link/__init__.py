"""Descriptors: the epoll set of a socket, its connections, and the thread that writes deferred batches."""
