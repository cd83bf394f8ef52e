from omq._core.queues.peer import RecvQueue, SendQueue

class Passage:
    """One direction of a proxy: from the receive queue of one socket into the send queue of another.

    A message stays in its receive queue until the send queue has accepted it.

    Args:
        source: Where messages come from.
        target: Where they go.
        capture: Gets a copy of each; `None`: nobody does.
    """

    def __init__(self, source: RecvQueue, target: SendQueue, capture: SendQueue | None) -> None: ...
