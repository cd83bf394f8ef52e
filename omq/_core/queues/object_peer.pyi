from omq._core.queues.peer import Peer

class ObjectPeer(Peer):
    """A peer whose messages are Python objects already: each is bytes, or a tuple of them."""
