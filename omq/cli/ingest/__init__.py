"""The command `omq ingest`."""
