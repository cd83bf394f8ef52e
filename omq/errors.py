"""Every exception that omq raises, as one tree.

The tree answers "whose fault is it?": the caller's (`UsageError`), the clock's (`Timeout`), the
operating system's (`TransportError`), the peer's (`ProtocolError`, `HandshakeError`). A peer's errors
never reach a user's call: they end that peer's connection and are reported by the monitor and the log.
"""

from typing import Self

__all__ = [
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
    """The call itself is wrong: repeating it unchanged fails again."""


class OptionError(UsageError):
    """An option does not exist, does not fit the socket type, or has a value outside its range."""


class EndpointError(UsageError):
    """An endpoint cannot be parsed, or its transport is unknown."""


class StateError(UsageError):
    """The call does not fit the socket's state, its type, or the thread or loop that makes it."""


class MultipartError(UsageError):
    """The next message has several parts, but the call receives one; the message stays at the head of the queue."""


class MessageTooLarge(UsageError):
    """The next message does not fit into the caller's buffer; it stays at the head of the queue.

    Attributes:
        size: The message's size in bytes; `None` if the call does not know it.
    """

    size: int | None = None


class ClosedError(OmqError):
    """The socket is closed, or was closed while the call waited."""


class ContextTerminated(ClosedError):
    """The context that owns the socket has been terminated, and the socket closed with it."""


class UnroutableError(OmqError):
    """No connected peer has the address that the message names."""


class Timeout(OmqError, TimeoutError):
    """The timeout of a call has passed. Nothing was sent or received."""


class SendTimeout(Timeout):
    """The socket did not accept the message in time."""


class ReceiveTimeout(Timeout):
    """No message arrived in time."""


class TransportError(OmqError, OSError):
    """The operating system refused an operation."""


class BindError(TransportError):
    """An endpoint cannot be bound."""


class ConnectError(TransportError):
    """An endpoint cannot be connected to."""


class ProtocolError(OmqError):
    """A violation of ZMTP."""


class LocalProtocolError(ProtocolError):
    """A violation of ZMTP by this side, caught before it is sent: a bug in the caller of the protocol layer."""


class RemoteProtocolError(ProtocolError):
    """The peer violated ZMTP; its connection ends."""


class HandshakeError(OmqError):
    """The handshake with a peer failed."""


class HandshakeTimeout(HandshakeError, TimeoutError):
    """The handshake with a peer did not finish within `handshake_timeout`."""


class MechanismError(HandshakeError):
    """The two sides use different security mechanisms, or the same role in one."""


class AuthenticationError(HandshakeError):
    """One side refused the other's credentials."""
