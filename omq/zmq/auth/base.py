"""The handler of ZAP requests (RFC 27), without a loop: the program calls `handle_zap_message`."""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable
from typing import Any, Final

from omq.zmq.auth.certs import load_certificates
from omq.zmq.constants import REP
from omq.zmq.context import Context
from omq.zmq.socket import Socket
from omq.zmq.utils import z85

CURVE_ALLOW_ANY: Final = "*"
#: The endpoint at which sockets of the context ask.
ZAP_ENDPOINT: Final = "inproc://zeromq.zap.01"
VERSION: Final = b"1.0"
_ANY_DOMAIN: Final = "*"
#: The length of a request without credentials, in parts.
_REQUEST_PARTS: Final = 6


class Authenticator:
    """Decides which peers the sockets of a context accept.

    Without rules, it accepts peers without security and rejects PLAIN and CURVE.

    Args:
        context: The context of the sockets; `None` for `Context.instance()`.
        encoding: The encoding of domains, addresses, user names and passwords.
        log: The logger; `None` for `zmq.auth`.

    Attributes:
        zap_socket: The REP that receives the requests, between `start` and `stop`.
        allow_any: Whether any CURVE key is accepted.
        passwords: The passwords by user name, by domain.
        certs: The accepted CURVE keys, by domain.
        credentials_providers: The objects whose `callback` is asked about CURVE keys, by domain.
    """

    context: Context[Any]
    encoding: str
    allow_any: bool
    credentials_providers: dict[str, Any]
    zap_socket: Socket[Any]
    passwords: dict[str, dict[str, str]]
    certs: dict[str, dict[bytes, Any]]
    log: Any

    def __init__(self, context: Context[Any] | None = None, encoding: str = "utf-8", log: Any = None) -> None:
        self.context = context or Context.instance()
        self.encoding = encoding
        self.allow_any = False
        self.credentials_providers = {}
        self.zap_socket = None  # type: ignore[assignment]
        self._allowed: set[str] = set()
        self._denied: set[str] = set()
        self.passwords = {}
        self.certs = {}
        self.log = log or logging.getLogger("zmq.auth")

    def start(self) -> None:
        """Begins to receive requests: opens `zap_socket`."""
        self.zap_socket = self.context.socket(REP, socket_class=Socket)
        self.zap_socket.linger = 1
        self.zap_socket.bind(ZAP_ENDPOINT)
        self.log.debug("Started")

    def stop(self) -> None:
        """Closes `zap_socket`."""
        if self.zap_socket:
            self.zap_socket.close()
        self.zap_socket = None  # type: ignore[assignment]

    def allow(self, *addresses: str) -> None:
        """Rejects peers from all addresses that were not allowed.

        Raises:
            ValueError: `deny` has been called.
        """
        if self._denied:
            raise ValueError("Only use allow or deny, not both")
        self.log.debug("Allowing %s", ",".join(addresses))
        self._allowed.update(addresses)

    def deny(self, *addresses: str) -> None:
        """Rejects peers from some addresses.

        Raises:
            ValueError: `allow` has been called.
        """
        if self._allowed:
            raise ValueError("Only use allow or deny, not both")
        self.log.debug("Denying %s", ",".join(addresses))
        self._denied.update(addresses)

    def configure_plain(self, domain: str = "*", passwords: dict[str, str] | None = None) -> None:
        """Sets the passwords of PLAIN.

        Args:
            domain: The domain (`zap_domain` of the socket); `*` for sockets without one.
            passwords: The passwords by user name.
        """
        if passwords:
            self.passwords[domain] = passwords
        self.log.debug("Configured PLAIN for domain %s", domain)

    def configure_curve(self, domain: str = "*", location: str | os.PathLike[str] = ".") -> None:
        """Sets the accepted keys of CURVE.

        Args:
            domain: The domain; `*` for sockets without one.
            location: A folder of public keys, which is read now; or `CURVE_ALLOW_ANY`.
        """
        self.log.debug("Configured CURVE for domain %s with %s", domain, location)
        self.allow_any = location == CURVE_ALLOW_ANY
        if not self.allow_any:
            try:
                self.certs[domain] = load_certificates(location)
            except (OSError, ValueError) as error:
                self.log.error("Failed to load CURVE certs from %s: %s", location, error)

    def configure_curve_callback(self, domain: str = "*", credentials_provider: Any = None) -> None:
        """Sets the object that is asked about keys of CURVE.

        Args:
            domain: The domain; `*` for sockets without one.
            credentials_provider: Its `callback(domain, key)` returns whether it accepts a key, or an awaitable of that.
        """
        self.allow_any = False
        if credentials_provider is None:
            self.log.error("credentials_provider of domain %s is None", domain)
        else:
            self.credentials_providers[domain] = credentials_provider

    def configure_gssapi(self, domain: str = "*", location: str | None = None) -> None:
        """Does nothing: GSSAPI has no rules."""

    def curve_user_id(self, client_public_key: bytes) -> str:
        """Returns the user id of an accepted CURVE peer; a subclass may return another than its key as Z85."""
        return z85.encode(client_public_key).decode("ascii")

    async def handle_zap_message(self, msg: list[bytes]) -> None:
        """Answers one request that `zap_socket` has received."""
        if len(msg) < _REQUEST_PARTS:
            self.log.error("A ZAP request has %d parts instead of %d: %r", len(msg), _REQUEST_PARTS, msg)
            if len(msg) > 1:
                self._send_zap_reply(msg[1], b"400", b"Not enough frames")
            return
        version, request_id, domain, address, _, mechanism = msg[:_REQUEST_PARTS]
        if version != VERSION:
            self.log.error("A ZAP request has version %r instead of %r", version, VERSION)
            self._send_zap_reply(request_id, b"400", b"Invalid version")
            return
        accepted, reason, user_id = await self._decide(
            self._decoded(domain) or _ANY_DOMAIN, self._decoded(address), mechanism, msg[_REQUEST_PARTS:]
        )
        self.log.debug("%s %s from %s: %s", "ALLOWED" if accepted else "DENIED", mechanism, address, reason)
        if accepted:
            self._send_zap_reply(request_id, b"200", b"OK", user_id)
        else:
            self._send_zap_reply(request_id, b"400", reason)

    async def _decide(
        self, domain: str, address: str, mechanism: bytes, credentials: list[bytes]
    ) -> tuple[bool, bytes, str]:
        """Returns whether a peer is accepted, why not, and its user id."""
        user_id = "anonymous"
        if self._allowed and address not in self._allowed:
            return False, b"Address not allowed", user_id
        if address in self._denied:
            return False, b"Address denied", user_id
        if mechanism == b"PLAIN":
            if len(credentials) != 2:
                return False, b"Invalid credentials", user_id
            user_id, password = map(self._decoded, credentials)
            return *self._authenticate_plain(domain, user_id, password), user_id
        if mechanism == b"CURVE":
            if len(credentials) != 1:
                return False, b"Invalid credentials", user_id
            accepted, reason = await self._authenticate_curve(domain, credentials[0])
            return accepted, reason, self.curve_user_id(credentials[0]) if accepted else user_id
        if mechanism == b"GSSAPI":
            if len(credentials) != 1:
                return False, b"Invalid credentials", user_id
            return True, b"OK", credentials[0].decode()
        accepted = mechanism == b"NULL" or bool(self._allowed or self._denied)
        return accepted, b"OK" if accepted else b"NO ACCESS", user_id

    def _authenticate_plain(self, domain: str, username: str, password: str) -> tuple[bool, bytes]:
        if not self.passwords:
            return False, b"No passwords defined"
        if domain not in self.passwords:
            return False, b"Invalid domain"
        if username not in self.passwords[domain]:
            return False, b"Invalid username"
        accepted = password == self.passwords[domain][username]
        return accepted, b"OK" if accepted else b"Invalid password"

    async def _authenticate_curve(self, domain: str, client_key: bytes) -> tuple[bool, bytes]:
        if self.allow_any:
            return True, b"OK"
        rules = self.credentials_providers or self.certs
        if domain not in rules:
            return False, b"Unknown domain"
        key = z85.encode(client_key)
        if self.credentials_providers:
            accepted = self.credentials_providers[domain].callback(domain, key)
            if isinstance(accepted, Awaitable):
                accepted = await accepted
        else:
            accepted = self.certs[domain].get(key)
        return bool(accepted), b"OK" if accepted else b"Unknown key"

    def _decoded(self, value: bytes) -> str:
        return value.decode(self.encoding, "replace")

    def _send_zap_reply(
        self, request_id: bytes, status_code: bytes, status_text: bytes, user_id: str = "anonymous"
    ) -> None:
        """Sends the answer to a request."""
        user = user_id.encode(self.encoding, "replace") if status_code == b"200" else b""
        self.zap_socket.send_multipart([VERSION, request_id, status_code, status_text, user, b""])


__all__ = ["CURVE_ALLOW_ANY", "Authenticator"]
