from omq._core.wire.pool import Pool

class SendBuffer:
    """Bytes that a connection has accepted and the kernel has not.

    Args:
        pool: Where the arena for copies comes from.
    """

    def __init__(self, pool: Pool) -> None: ...
