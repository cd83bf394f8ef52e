"""The client's side of SOCKS 5 (RFC 1928) with user names and passwords (RFC 1929), without I/O.

A proxy resolves the endpoint's name, and connects to it. After the last byte of its reply come the bytes of the
endpoint itself. So each step needs a fixed number of bytes, and not one more may be read for it.
"""

from __future__ import annotations

import errno
import ipaddress
from collections.abc import Callable
from typing import Final

_VERSION: Final = 5
_AUTH_VERSION: Final = 1  # RFC 1929, section 2
_NO_AUTH, _PASSWORD, _NONE_FITS = 0, 2, 0xFF  # RFC 1928, section 3: METHOD
_CONNECT: Final = 1  # section 4: CMD
_IPV4, _NAME, _IPV6 = 1, 3, 4  # section 4: ATYP
_ADDRESS_BYTES: Final = {_IPV4: 4, _IPV6: 16}
_PORT_BYTES: Final = 2
#: RFC 1928, section 6: REP.
_REFUSALS: Final = {
    1: (errno.EIO, "general failure"),
    2: (errno.EACCES, "its rules do not allow the connection"),
    3: (errno.ENETUNREACH, "network unreachable"),
    4: (errno.EHOSTUNREACH, "host unreachable"),
    5: (errno.ECONNREFUSED, "connection refused"),
    6: (errno.ETIMEDOUT, "TTL expired"),
    7: (errno.EOPNOTSUPP, "it does not connect"),
    8: (errno.EAFNOSUPPORT, "it does not take addresses of this kind"),
}


class SocksOpening:
    """The exchange with a proxy on one connection.

    Args:
        proxy: The proxy, for errors.
        host: The host that the proxy connects to: a name or an address, without brackets.
        port: The port there.
        remote: The same as an endpoint.
        credentials: The user name and the password; `None` if the proxy needs neither.

    Attributes:
        remote: The endpoint that the connection leads to in the end.
        needed: The number of bytes that `receive` takes next; 0 at the end.
    """

    def __init__(
        self, proxy: str, host: str, port: int, remote: str, credentials: tuple[bytes, bytes] | None = None
    ) -> None:
        self.remote = remote
        self.needed = 0
        self._proxy = proxy
        self._target = _address(host) + port.to_bytes(_PORT_BYTES, "big")
        self._credentials = credentials
        self._step: Callable[[bytes], bytes] = self._chosen

    def start(self) -> bytes:
        """Returns the bytes to send first."""
        self.needed = 2
        return bytes([_VERSION, 1, self._method])

    def receive(self, data: bytes) -> bytes:
        """Takes the `needed` bytes; returns the bytes to send next.

        Raises:
            OSError: The proxy refuses, or does not speak SOCKS 5.
        """
        return self._step(data)

    @property
    def _method(self) -> int:
        return _NO_AUTH if self._credentials is None else _PASSWORD

    def _chosen(self, data: bytes) -> bytes:
        version, method = data
        if version != _VERSION:
            raise self._error(errno.EPROTO, f"does not speak SOCKS 5: its answer begins with {data!r}")
        if method == _NONE_FITS:
            wanted = "a user name" if self._credentials is None else "a method other than a user name and a password"
            raise self._error(errno.EACCES, f"wants {wanted}")
        if method != self._method:
            raise self._error(errno.EPROTO, f"chose the method {method}, which was not offered")
        if self._credentials is None:
            return self._request()
        username, password = self._credentials
        self._step, self.needed = self._authenticated, 2
        return b"".join([bytes([_AUTH_VERSION, len(username)]), username, bytes([len(password)]), password])

    def _authenticated(self, data: bytes) -> bytes:
        version, status = data
        if version != _AUTH_VERSION:
            raise self._error(errno.EPROTO, f"answered a user name with {data!r}")
        if status:
            raise self._error(errno.EACCES, f"refused the user name or the password (status {status})")
        return self._request()

    def _request(self) -> bytes:
        self._step, self.needed = self._answered, 4
        return bytes([_VERSION, _CONNECT, 0]) + self._target

    def _answered(self, data: bytes) -> bytes:
        version, reply, _, kind = data
        if version != _VERSION:
            raise self._error(errno.EPROTO, f"answered the request with {data!r}")
        if reply:
            code, why = _REFUSALS.get(reply, (errno.EPROTO, f"unknown reply {reply}"))
            raise self._error(code, f"did not connect: {why}")
        if kind == _NAME:
            self._step, self.needed = self._named, 1
        elif kind in _ADDRESS_BYTES:
            self._step, self.needed = self._bound, _ADDRESS_BYTES[kind] + _PORT_BYTES
        else:
            raise self._error(errno.EPROTO, f"answered with an address of the unknown type {kind}")
        return b""

    def _named(self, data: bytes) -> bytes:
        self._step, self.needed = self._bound, data[0] + _PORT_BYTES
        return b""

    def _bound(self, _: bytes) -> bytes:
        """Skips the proxy's own address on the way, which is not needed."""
        self.needed = 0
        return b""

    def _error(self, code: int, what: str) -> OSError:
        return OSError(code, f"the proxy {self._proxy} {what}")


def _address(host: str) -> bytes:
    """Returns ATYP and DST.ADDR (RFC 1928, section 5)."""
    try:
        packed = ipaddress.ip_address(host.partition("%")[0]).packed
    except ValueError:
        name = host.encode("ascii" if host.isascii() else "idna")
        return bytes([_NAME, len(name)]) + name
    return bytes([_IPV4 if len(packed) == _ADDRESS_BYTES[_IPV4] else _IPV6]) + packed
