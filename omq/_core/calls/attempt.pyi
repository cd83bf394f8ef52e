"""One attempt of a call, without waiting: nothing here is for Python."""
