"""The command `omq sniff`."""
