def encode_frame(body: bytes, more: bool = False, command: bool = False) -> bytes:
    """Encodes one frame with the shortest header that fits.

    Args:
        body: The frame's content.
        more: Another frame of the same message follows.
        command: The frame is a command, not a part of a message.

    Returns:
        Header and body, in the form of the wire (RFC 23, "Framing").
    """

class FrameDecoder:
    """Cuts a stream of bytes into frames; used until the handshake is done, and by tests.

    Args:
        max_size: Bytes of the largest body that is accepted; `None` for no limit.
    """

    def __init__(self, max_size: int | None = None) -> None: ...
    @property
    def unread(self) -> bytes:
        """The bytes that were fed and belong to no returned frame."""

    def feed(self, data: bytes) -> None:
        """Appends bytes from the peer."""

    def next_frame(self) -> tuple[int, bytes] | None:
        """Takes the next whole frame.

        Returns:
            The flags (bit 0: more, bit 2: command) and the body, or `None` if no whole frame is there.

        Raises:
            RemoteProtocolError: The bytes are no frame, or the frame is larger than `max_size`.
        """
