"""The command `omq top`."""
