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
    """The root of every exception that omq raises on purpose.

    Attributes:
        argument: The argument that the error is about: its text begins with that name; `None` for no single one.
    """

    argument: str | None = None

    def about(self, argument: str) -> Self:
        """Names the argument that the error is about; returns the error."""
        self.argument = argument
        return self


class UsageError(OmqError, ValueError):
    """The call itself is wrong; repeating it unchanged fails again."""


class OptionError(UsageError):
    """An option does not exist, does not fit the socket type, or has a value outside its range."""


class EndpointError(UsageError):
    """An endpoint cannot be parsed, or its transport is not known."""


class StateError(UsageError):
    """The call does not fit the socket's state, its type, or the thread or loop that makes it."""


class MultipartError(UsageError):
    """The next message has several parts and the call takes one; the message stays first in line."""


class MessageTooLarge(UsageError):
    """The next message does not fit into the caller's buffer; the message stays first in line.

    Attributes:
        size: Its bytes, where the call knows them; else `None`.
    """

    size: int | None = None


class ClosedError(OmqError):
    """The socket is closed, or was closed while the call waited."""


class ContextTerminated(ClosedError):
    """The context that owns the socket has been terminated, and the socket closed with it."""


class UnroutableError(OmqError):
    """No connected peer has the address that the message names."""


class Timeout(OmqError, TimeoutError):
    """The time given to a call has passed. Nothing was sent, nothing was taken."""


class SendTimeout(Timeout):
    """The socket did not accept the message in time."""


class ReceiveTimeout(Timeout):
    """No message arrived in time."""


class TransportError(OmqError, OSError):
    """The operating system refused."""


class BindError(TransportError):
    """The endpoint cannot be listened on."""


class ConnectError(TransportError):
    """The endpoint cannot be dialled."""


class ProtocolError(OmqError):
    """ZMTP was violated."""


class LocalProtocolError(ProtocolError):
    """An error of this side, which was about to violate ZMTP: a bug in the caller of the protocol layer."""


class RemoteProtocolError(ProtocolError):
    """The peer sent bytes that ZMTP does not allow; its connection ends."""


class HandshakeError(OmqError):
    """The handshake with a peer failed."""


class HandshakeTimeout(HandshakeError, TimeoutError):
    """The handshake with a peer was not done within `handshake_timeout`."""


class MechanismError(HandshakeError):
    """The two sides do not use the same security mechanism, or not in complementary roles."""


class AuthenticationError(HandshakeError):
    """The peer's credentials were refused, or ours were."""
