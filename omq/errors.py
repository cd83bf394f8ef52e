"""Every exception that omq raises, as one tree.

The tree answers "whose fault is it?": the caller's (`UsageError`), the clock's (`Timeout`), the
operating system's (`TransportError`), the peer's (`ProtocolError`, `HandshakeError`). A peer's errors
never reach a user's call: they end that peer's connection and are reported by the monitor and the log.
"""

from typing import Self

__all__ = [
    "AlreadyConnected",
    "AuthenticationError",
    "BindError",
    "ClosedError",
    "ConnectError",
    "ContextTerminated",
    "EndpointError",
    "HandshakeError",
    "HandshakeTimeout",
    "LocalProtocolError",
    "MechanismError",
    "MessageTooLarge",
    "MultipartError",
    "OmqError",
    "OptionError",
    "ProtocolError",
    "ReceiveTimeout",
    "RemoteProtocolError",
    "SendTimeout",
    "StateError",
    "Timeout",
    "TransportError",
    "UnroutableError",
    "UsageError",
]


class OmqError(Exception):
    """Base class of every exception that omq raises on purpose.

    Attributes:
        argument: The name of the argument that the error is about; its text begins with it. `None` for no single one.
    """

    argument: str | None = None

    def about(self, argument: str) -> Self:
        """Sets `argument` and returns the error."""
        self.argument = argument
        return self


class UsageError(OmqError, ValueError):
    """Raised when the call itself is wrong: repeating it unchanged fails again."""


class OptionError(UsageError):
    """Raised when an option is unknown, does not fit the socket type, or has an invalid value."""


class AlreadyConnected(OptionError):
    """Raised when the socket is connected to the endpoint with another value of an option."""


class EndpointError(UsageError):
    """Raised when an endpoint is not valid, does not fit the socket type, or is not bound or connected."""


class StateError(UsageError):
    """Raised when the socket's state or type, or the calling thread or loop, does not allow the call."""


class MultipartError(UsageError):
    """Raised when a message has several parts, and the call or the socket type handles one.

    A received message stays at the head of the queue.
    """


class MessageTooLarge(UsageError):
    """Raised when the next message does not fit into the caller's buffer; it stays at the head of the queue.

    Attributes:
        size: The message's size in bytes; `None` if the call does not know it.
    """

    size: int | None = None


class ClosedError(OmqError):
    """Raised when the socket is closed, or was closed while the call waited."""


class ContextTerminated(ClosedError):
    """Raised when the context of the socket was terminated, which closed the socket."""


class UnroutableError(OmqError):
    """Raised when no connected peer has the address of the message."""


class Timeout(OmqError, TimeoutError):
    """Raised when the timeout of a call has passed; each subclass documents what may have happened by then."""


class SendTimeout(Timeout):
    """Raised when the socket has not accepted a message, or `flush` has not sent all of them, in time."""


class ReceiveTimeout(Timeout):
    """Raised when no message arrived in time."""


class TransportError(OmqError, OSError):
    """Raised when the operating system refused an operation, or a connection failed.

    `errno` has the number of the system's error, if there is one.
    """


class BindError(TransportError):
    """Raised when an endpoint cannot be bound."""


class ConnectError(TransportError):
    """Raised when an endpoint cannot be connected to."""


class ProtocolError(OmqError):
    """Raised when ZMTP is violated."""


class LocalProtocolError(ProtocolError):
    """Raised before this side violates ZMTP: a bug in the caller of the protocol layer."""


class RemoteProtocolError(ProtocolError):
    """Raised when the peer violated ZMTP; its connection ends."""


class HandshakeError(OmqError):
    """Raised when the handshake with a peer failed."""


class HandshakeTimeout(HandshakeError, TimeoutError):
    """Raised when the handshake with a peer did not finish within `handshake_timeout`."""


class MechanismError(HandshakeError):
    """Raised when the two sides use different security mechanisms, or the same role in one."""


class AuthenticationError(HandshakeError):
    """Raised when one side refused the credentials of the other.

    Attributes:
        status: The status of ZAP (RFC 27): 400 for a refusal, 300 for a temporary one, 500 for an error of the handler.
    """

    def __init__(self, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.status = status
