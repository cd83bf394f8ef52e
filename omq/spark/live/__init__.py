"""Live sockets as sources (PULL and SUB) and sinks (PUSH and PUB) of Spark."""
