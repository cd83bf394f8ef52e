"""Commands that wait while bytes of their peer may be on their way. Nothing here is for Python."""

class CommandBacklog:
    """The waiting commands of one connection."""

    def __init__(self, bytes_in: int) -> None: ...
