class Flusher:
    """Writes what was left behind, without the GIL."""

    def stop(self) -> None:
        """Ends the thread; what is left behind stays where it is."""
