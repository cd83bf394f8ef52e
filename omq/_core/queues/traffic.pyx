"""The counters of a socket: the sums of those of its peers, also of peers that have gone."""

from omq._core.queues.peer cimport Peer, RecvQueue, SendQueue


cdef class Traffic:
    """Counts the messages of a socket, without a lock.

    The peers count their own messages. They are summed here, in calls that run no other code: any thread may read the
    sums, and a peer that ends meanwhile is counted once.
    """

    def __cinit__(self):
        self._peers = set()

    def add(self, Peer peer not None) -> None:
        """Counts the messages of a peer from now on."""
        self._peers.add(peer)

    def remove(self, Peer peer not None) -> None:
        """Keeps the counters of a peer that has ended; ignores one that was not added."""
        if peer in self._peers:
            self._peers.remove(peer)
            self._sent += peer.sent_messages()
            self._received += peer.messages_in
            self._sent_bytes += peer.sent_bytes()
            self._received_bytes += peer.bytes_in
            self._dropped += peer.dropped + peer.abandoned

    def counts(
        self, SendQueue send_queue: SendQueue | None, RecvQueue recv_queue: RecvQueue | None
    ) -> tuple[int, int, int, int, int, int, int]:
        """Returns the sums.

        Args:
            send_queue: The socket's queue of messages to send; `None` for none.
            recv_queue: The socket's queue of received messages; `None` for none.

        Returns:
            Messages sent and received, bytes sent and received, dropped messages, messages in the two queues.
        """
        cdef Peer peer
        cdef long long sent = self._sent
        cdef long long received = self._received
        cdef long long sent_bytes = self._sent_bytes
        cdef long long received_bytes = self._received_bytes
        cdef long long dropped = self._dropped
        cdef Py_ssize_t unsent = 0
        cdef Py_ssize_t unread = 0
        for peer in self._peers:
            sent += peer.sent_messages()
            received += peer.messages_in
            sent_bytes += peer.sent_bytes()
            received_bytes += peer.bytes_in
            dropped += peer.dropped + peer.abandoned
            unsent += peer.pending()
        if send_queue is not None:
            dropped += send_queue.dropped
            unsent += send_queue.waiting()
        if recv_queue is not None:
            dropped += recv_queue.dropped
            unread = recv_queue.waiting()
        # A thread without the GIL may be moving messages from one of these numbers to the other.
        self._reported = max(self._reported, sent)
        return self._reported, received, sent_bytes, received_bytes, dropped, unsent, unread
