from omq._core.wire.codec import Codec

#: Bytes that one received message has at most.
CHUNK: int

class RawCodec(Codec):
    """No frames: a message is sent as its bytes, and what one read brings is a message. Commands are not sent."""
