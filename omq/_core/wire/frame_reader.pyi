from omq._core.wire.pool import Pool

class FrameReader:
    """The frames that a connection has received and nobody has taken yet.

    Args:
        pool: Where slabs come from.
        max_size: Bytes that one message may have, all parts together; `None` for no limit.
        max_parts: Parts that one message may have; `None` for 1048576.
        ceiling: Bytes that may have arrived of an unfinished message while there is no *max_size*.
    """

    def __init__(
        self, pool: Pool, max_size: int | None = None, max_parts: int | None = None, ceiling: int = ...
    ) -> None: ...
