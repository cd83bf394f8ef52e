"""The command `omq bench`."""
