"""The ZMTP server of the broker, for omq's clients and those of any ZeroMQ library."""
