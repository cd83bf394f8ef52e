class Pool:
    """Blocks of memory that connections borrow for their slabs and batches.

    Args:
        limit: How many unused blocks are kept for the next borrower.
    """

    def __init__(self, limit: int = 16) -> None: ...
