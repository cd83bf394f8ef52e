"""The endpoints of a broker, or of the members of a cluster, and the choice of the one to try next, without I/O."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from omq import check_endpoint
from omq.broker.client.client_protocol import ClusterInfo, RetryBackoff
from omq.errors import EndpointError
from omq.types import SocketType

NO_ANSWER: Final = "no answer"  #: The failure of an endpoint from which nothing has come.

_MIN_LIFETIME_S: Final = 1.0  # of a connection after whose loss the next attempt is made at once
#: The seconds that an endpoint has to answer if there are others: in the first round, and at most.
_MIN_ATTEMPT_TIMEOUT_S: Final = 2.0
_MAX_ATTEMPT_TIMEOUT_S: Final = 16.0
_MAX_ENDPOINTS: Final = 32  # that a broker may name, and that the text of an error has
_TLS: Final = "wss:"


class EndpointPool(RetryBackoff):
    """The endpoints that a client knows, the one that it uses, and the time of the next attempt.

    In a round each endpoint is tried once, that of the leader first, one directly after the other. Between two rounds
    there is a delay, which grows. With a single endpoint each attempt is a round.

    Args:
        given: The endpoint, or several.

    Attributes:
        current: The endpoint of the present connection, or of the next attempt.

    Raises:
        EndpointError: An endpoint is not valid.
        ValueError: There is no endpoint.
    """

    def __init__(self, given: str | Iterable[str]) -> None:
        super().__init__()
        one = isinstance(given, str | bytes) or not isinstance(given, Iterable)
        self._given: tuple[str, ...] = (given,) if one else tuple(given)  # type: ignore[assignment]
        if not self._given:
            raise ValueError(f"endpoint={given!r:.80}: must be at least one endpoint")
        for endpoint in self._given:
            check_endpoint(endpoint, socket_type=SocketType.DEALER)
        self.current = self._given[0]
        self._members: tuple[str, ...] = ()  # of the cluster, as a broker has named them
        self._leader: tuple[str, ...] = ()  # to try first in this round
        self._tried: set[str] = set()  # in this round
        self._rounds = 0  # without success
        self._failures: dict[str, str] = {}  # why endpoints were left, since the last success
        self._next_attempt = float("-inf")

    def lost(
        self, now: float, welcomed: bool, failure: str = "", cluster: ClusterInfo | None = None, refused: bool = False
    ) -> None:
        """Chooses the next endpoint and the time of its attempt, after a connection was lost or could not be made.

        The attempt is made at once after a connection of at least `_MIN_LIFETIME_S`, after the shortest delay after a
        shorter one that the broker has welcomed, and otherwise as the rounds determine.

        Args:
            now: The time of a monotonic clock, in seconds.
            welcomed: True if the broker had answered `HELLO`, and served this client.
            failure: The reason, for the text of an error.
            cluster: The cluster of the broker, if it has named one.
            refused: True if the broker does not serve this client, since it is not the leader.
        """
        lasted = welcomed and now - self._next_attempt > _MIN_LIFETIME_S
        served = lasted or (welcomed and not refused)
        if served:
            self.reset()
            self._rounds = 0
            self._tried.clear()
            self._failures.clear()
        if cluster is not None:
            self._members = self._usable(cluster.members)
            if refused:
                self._leader = self._usable(cluster.leader)
        self._tried.add(self.current)
        if refused or self.has_others:
            self._failures.pop(self.current, None)
            self._failures[self.current] = failure
            for endpoint in list(self._failures)[:-_MAX_ENDPOINTS]:
                del self._failures[endpoint]
        following = self._following()
        if following is None:
            self._rounds += 1
            self._tried.clear()
            self._leader = ()
        at_once = lasted or (following is not None and not served)
        self._next_attempt = now if at_once else now + self.next()
        self.current = following or self._following() or self.current

    def remaining(self, now: float) -> float:
        """Returns the seconds until the next attempt; 0 or less for at once."""
        return self._next_attempt - now

    @property
    def has_others(self) -> bool:
        """Returns whether there are other endpoints than the current one."""
        return any(endpoint != self.current for endpoint in self._known)

    @property
    def attempt_timeout(self) -> float | None:
        """The seconds after which another endpoint is tried; `None` if there is no other one."""
        if not self.has_others:
            return None
        return min(_MIN_ATTEMPT_TIMEOUT_S * 2.0 ** min(self._rounds, 8), _MAX_ATTEMPT_TIMEOUT_S)

    def failures(self, failure: str) -> str:
        """Returns the tried endpoints with their failures, as a text; empty for a broker without a cluster.

        Args:
            failure: The failure of the present attempt; empty without one.
        """
        if not self._failures:
            return ""
        found = {**self._failures}
        if failure or self.current not in found:
            found.pop(self.current, None)
            found[self.current] = failure or NO_ANSWER
        return "; ".join(f"{endpoint}: {text}" for endpoint, text in found.items())

    @property
    def _known(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self._given, *self._members)))

    def _following(self) -> str | None:
        """Returns the next endpoint of this round, the leader's or the one after the current one; `None` at its end."""
        known = self._known
        after = known.index(self.current) + 1 if self.current in known else 0
        for endpoint in (*self._leader, *known[after:], *known[:after]):
            if endpoint not in self._tried:
                return endpoint
        return None

    def _usable(self, named: tuple[str, ...]) -> tuple[str, ...]:
        """Returns the endpoints to which this client can connect, of those that a broker has named.

        If all given endpoints have TLS, others are not usable: a password would be sent in clear.
        """
        has_tls = all(endpoint.startswith(_TLS) for endpoint in self._given)
        found = []
        for endpoint in named[:_MAX_ENDPOINTS]:
            with suppress(EndpointError):
                check_endpoint(endpoint, socket_type=SocketType.DEALER)
                if endpoint.startswith(_TLS) or not has_tls:
                    found.append(endpoint)
        return tuple(found)
