"""Descriptions of a peer and of a message's sender, for users.

A description is made without running Python code, because the message has been taken by then: a signal handler that
raised here would lose it.
"""

from omq._core.queues.peer cimport Peer, RecvQueue

from omq.message import Message, PeerInfo

cdef extern from "Python.h":
    # The classes are frozen dataclasses. `object.__setattr__` does the same, but the call alone costs more than the
    # work.
    int put "PyObject_GenericSetAttr"(object, object, object) except -1


def snapshot(session: Any) -> PeerInfo:
    """Describes a peer that has finished its handshake.

    Args:
        session: The engine's object for the connection.
    """
    return _portray(session, session.peer)


cdef object _portray(session, Peer peer):
    info = session.info
    seen = PeerInfo.__new__(PeerInfo)
    put(seen, "endpoint", session.endpoint)
    put(seen, "mechanism", (<bytes>info.mechanism).decode("ascii"))
    put(seen, "identity", peer.identity or session.identity)
    put(seen, "user_id", session.user_id)
    put(seen, "properties", info.properties)
    put(seen, "messages_in", peer.messages_in)
    put(seen, "messages_out", peer.messages_out)
    put(seen, "bytes_in", peer.bytes_in)
    put(seen, "bytes_out", peer.sent_bytes())
    put(seen, "dropped", peer.dropped)
    put(seen, "since", session.since)
    return seen


cdef object describe(list parts, RecvQueue recv_queue):
    """Returns the message that was taken last, with its sender, as `recv_message` returns it."""
    cdef Peer peer = recv_queue.last
    message = Message.__new__(Message)
    put(message, "parts", parts)
    put(message, "peer", _portray(peer.session, peer))
    put(message, "group", recv_queue.last_group())
    put(message, "routing_id", peer.routing_id)
    return message
