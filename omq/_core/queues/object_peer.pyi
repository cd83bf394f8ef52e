from omq._core.queues.peer import Peer

class ObjectPeer(Peer):
    """A peer whose messages are at hand as objects: each is bytes, or a tuple of them."""
