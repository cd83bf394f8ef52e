"""Messages as columns; see `columns.pyx`."""
