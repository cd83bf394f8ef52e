"""The `omq` command."""
