"""Live sockets behind Spark: PULL and SUB are read, PUSH and PUB are written."""
