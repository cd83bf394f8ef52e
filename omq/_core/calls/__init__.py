"""The message calls of users: coroutines of asyncio sockets, waiting threads of blocking sockets."""
