"""Commands that wait until nothing that their peer has sent is on its way. Nothing here is for Python."""

class CommandBacklog:
    """The commands of one connection that wait."""

    def __init__(self, bytes_in: int) -> None: ...
