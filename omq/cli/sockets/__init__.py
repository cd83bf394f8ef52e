"""The commands of the socket types."""
