"""The command `omq record`, and the file that it writes and `omq replay` reads."""
