"""A connection to any of several NATS servers, and requests to JetStream. The only module that imports nats-py.

nats-py can reconnect by itself. It is not used, because it then sends what was published before the connection was
lost, it leaves requests without an answer until their timeout, and it gives up for good on some errors.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

import nats.errors
from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg

from omq.store.errors import StoreError
from omq.store.replication.journal import JournalUnavailable, JournalUnusable

NatsMessage: TypeAlias = Msg
MIN_BACKOFF_S: Final = 0.05
MAX_BACKOFF_S: Final = 2.0
MAX_CONNECT_TIMEOUT_S: Final = 2.0
#: Seconds for one answer while servers may start or elect a leader.
PROBE_TIMEOUT_S: Final = 1.0
CLOSE_TIMEOUT_S: Final = 1.0
PING_INTERVAL_S: Final = 5
#: Bytes of a message that its headers may take of `max_payload`.
MAX_HEADER_BYTES: Final = 512
#: The highest size of a `Window`, and the time in which the servers are to acknowledge a chunk.
MAX_WINDOW_CHUNKS: Final = 16
CHUNK_TIME_S: Final = 0.1
#: What to do about the trouble with a server, by a part of its text in lower case.
_TODO: Final = {
    "authorization violation": "correct the user and the password",
    "certificate_verify_failed": "give the certificate of the authority that has signed theirs: `ca` in [cluster] of "
    "broker.toml, or the variable SSL_CERT_FILE",
    "[ssl": "correct their certificates and the TLS settings",
}
_START: Final = "start the servers or correct their URLs"
_DENIED: Final = re.compile(r'permissions violation for (?:publish|subscription) to "(\S+)"', re.IGNORECASE)
_log = logging.getLogger("omq.replication")

#: Codes of JetStream's errors.
INSUFFICIENT_RESOURCES: Final = 10023
NO_MESSAGE: Final = 10037
STREAM_NAME_IN_USE: Final = 10058
STREAM_NOT_FOUND: Final = 10059
STORE_FAILED: Final = 10077  # the description names a limit of the stream, or another reason
WRONG_LAST_SEQUENCE: Final = 10071
SEQUENCE_IN_USE: Final = 10164  # another message with the same subject is on its way

#: Errors that end without a change of settings: servers start, elect a leader or get space.
_TRANSIENT: Final = {
    10005: "start more of the servers, or ask for fewer replicas",
    10008: "a majority of the servers does not reach each other; start them, and check the routes between them",
    10009: "the servers elect a leader",
    INSUFFICIENT_RESOURCES: "free space on the disks of the servers, or raise max_file_store",
    10047: "free space on the disks of the servers, or raise max_file_store",
    STORE_FAILED: "free space on the disks of the servers",
    10163: "try again",
    10118: "start the servers that have the stream",
    10194: "start the servers that have the stream, in the version that created it",
    10002: "raise the JetStream limits of the account",
}
#: What to do about errors that do not end by themselves.
_ADVICE: Final = {
    10026: "raise the maximum of consumers of the account",
    10027: "raise the maximum of streams of the account",
    10039: "enable JetStream for the account of this user",
    10054: "raise max_msg_size of the stream",
    10065: "another stream has the subject of the journal; delete it, or choose another name for the cluster",
    10074: "run at least three servers as a cluster, or ask for 1 replica",
    10076: "enable JetStream in the configuration of the servers",
    10113: "give max_bytes, which the account demands",
    10122: "give a lower max_bytes, or raise the limit of the account",
}


class NatsApiError(StoreError):
    """Raised for an error that JetStream answers.

    Attributes:
        code: Its number, `err_code` in the answer.
        description: Its text.
    """

    def __init__(self, code: int, description: str) -> None:
        super().__init__(f"NATS JetStream answers error {code}: {description}")
        self.code = code
        self.description = description

    def explained(self, action: str) -> StoreError:
        """Returns the error that callers of a journal get.

        Args:
            action: What failed, as in "append".
        """
        text = f"{action}: {self}"
        if self.code in _TRANSIENT:
            return JournalUnavailable(f"{text}; {_TRANSIENT[self.code]}")
        advice = _ADVICE.get(self.code)
        return JournalUnusable(f"{text}; {advice}" if advice else text)


class NoResponders(JournalUnavailable):
    """Raised when no server listens to a subject. Nothing was delivered."""


@dataclass(frozen=True, kw_only=True)
class NatsOptions:
    """The servers, and how to log in to them.

    Attributes:
        servers: URLs, as `nats://HOST:PORT` or `tls://USER:PASSWORD@HOST:PORT`.
        user: The name of the user, if it is not in the URLs.
        password: The password of the user.
        token: A token, for servers that use these.
        credentials: The path of a file with a JWT and a seed.
        tls: The certificates, for servers that demand or offer TLS.
        domain: The JetStream domain; empty for that of the servers.
        timeout: Seconds after which a server has not answered.
        name: The name that the servers show for this client.
    """

    servers: Sequence[str] = field(repr=False)  # may have passwords
    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    credentials: Path | None = None
    tls: ssl.SSLContext | None = None
    domain: str = ""
    timeout: float = 5.0
    name: str = "omq"

    def __post_init__(self) -> None:
        if not self.servers:
            raise ValueError("servers: is empty; expected at least one nats://HOST:PORT")
        for url in self.servers:
            parts = urlsplit(url)
            if parts.scheme not in ("nats", "tls") or not parts.hostname:
                raise ValueError(f"servers: {without_password(url)!r} is not valid; expected nats://HOST:PORT")

    def of_client(self) -> dict[str, Any]:
        """Returns the arguments of nats-py's `connect`."""
        given = {
            "user": self.user,
            "password": self.password,
            "token": self.token,
            "user_credentials": self.credentials and str(self.credentials),
            "tls": self.tls,
        }
        return {name: value for name, value in given.items() if value}


def without_password(url: str) -> str:
    """Returns a URL as messages show it."""
    scheme, _, rest = url.rpartition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}" if scheme else rest.rpartition("@")[2]


class _ServerConnection:
    """A connection to one server, until it is lost."""

    def __init__(self, client: NatsClient, server: str, lost: Callable[[_ServerConnection], None]) -> None:
        self.client = client
        self.server = server
        self.reason = ""  # why it is lost
        self.was_lost = asyncio.Event()
        self._lost = lost
        self._answers: dict[str, tuple[str, asyncio.Future[NatsMessage]]] = {}  # with the subjects of the requests
        self._inbox = ""
        self._count = 0

    async def start(self) -> None:
        self._inbox = f"{self.client.new_inbox()}."
        await self.client.subscribe(f"{self._inbox}*", cb=self._answered)

    async def send(
        self, subject: str, payload: bytes | memoryview, headers: dict[str, str] | None, timeout: float, stay: bool
    ) -> asyncio.Future[NatsMessage]:
        """Sends a request, and returns the future of its answer. See `NatsConnection.send`."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[NatsMessage] = loop.create_future()
        self._count += 1
        key = str(self._count)
        self._answers[key] = subject, answer
        timer = loop.call_later(timeout, self._late, key, subject, timeout, stay)

        def done(_: asyncio.Future[NatsMessage]) -> None:
            timer.cancel()
            self._answers.pop(key, None)

        answer.add_done_callback(done)
        if self.reason:
            answer.set_exception(JournalUnavailable(self.reason))
            return answer
        try:
            await self.client.publish(subject, payload, reply=self._inbox + key, headers=headers)
        except nats.errors.MaxPayloadError:
            if not answer.done():
                server = without_password(self.server)
                answer.set_exception(JournalUnavailable(f"max_payload of {server} is lower than that of the others"))
        except (nats.errors.Error, OSError) as error:
            self.lose(f"{without_password(self.server)}: {_text(error)}")
        return answer

    def lose(self, reason: str) -> None:
        """Ends the connection. Requests without an answer raise JournalUnavailable."""
        if self.reason:
            return
        self.reason = reason
        self.was_lost.set()
        self._fail(reason)
        self._lost(self)

    def deny(self, subject: str, reason: str) -> None:
        """Fails what waits for the permission to use a subject, which the server does not give."""
        if subject == f"{self._inbox}*".lower():
            self.lose(reason)
        else:
            self._fail(reason, subject)

    def _fail(self, reason: str, denied: str = "") -> None:
        for subject, answer in [*self._answers.values()]:
            if not answer.done() and denied in ("", subject.lower()):
                answer.set_exception(JournalUnavailable(reason))

    async def _answered(self, message: NatsMessage) -> None:
        _, answer = self._answers.get(message.subject[len(self._inbox) :], ("", None))
        if answer is not None and not answer.done():
            answer.set_result(message)

    def _late(self, key: str, subject: str, timeout: float, stay: bool) -> None:
        _, answer = self._answers.get(key, ("", None))
        if answer is not None and not answer.done():
            server = without_password(self.server)
            text = f"{server} has not answered {subject} within {timeout:g} s; is a majority of the servers running?"
            answer.set_exception(JournalUnavailable(text))
            if not stay:
                self.lose(text)


class Window:
    """The number of chunks that are sent before the first of them is acknowledged.

    It adapts to the speed of the servers: a message waits for all chunks that were sent before it, and the lease for
    the chunk that renews it.

    Attributes:
        size: The number.
    """

    def __init__(self) -> None:
        self.size = 1

    def adapt(self, seconds: float) -> None:
        """Adapts the size to the time between a chunk and its acknowledgement."""
        self.size = min(self.size + 1, MAX_WINDOW_CHUNKS) if seconds < CHUNK_TIME_S else max(self.size // 2, 1)


class NatsConnection:
    """A connection to any of the servers that replaces itself when it is lost.

    Args:
        options: The servers.

    Attributes:
        api: The beginning of the subjects of JetStream's API.
        closed: `close` was called.
    """

    def __init__(self, options: NatsOptions) -> None:
        self.options = options
        self.api = f"$JS.{options.domain}.API." if options.domain else "$JS.API."
        self._servers = [*options.servers]
        self._current: _ServerConnection | None = None
        self._ready = asyncio.Event()
        self._connecting: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._troubles: dict[str, str] = {}  # by server
        self._denied: set[str] = set()  # subjects that were reported
        self.closed = False

    async def open(self) -> None:
        """Connects to a server.

        Raises:
            JournalUnavailable: No server accepts the connection.
        """
        await self._round()
        if self._current is None:
            raise self._unreachable()

    @property
    def max_payload(self) -> int:
        """The bytes that one message may have without its headers."""
        if self._current is None:
            raise self._unreachable()
        return int(self._current.client.max_payload) - MAX_HEADER_BYTES

    @property
    def has_jetstream(self) -> bool:
        """The server that is connected has JetStream enabled."""
        return self._current is not None and bool(self._current.client._server_info.get("jetstream"))

    async def request(self, subject: str, payload: bytes = b"", headers: dict[str, str] | None = None) -> NatsMessage:
        """Sends a request, and returns its answer.

        Raises:
            NoResponders: No server listens to the subject.
            JournalUnavailable: The connection was lost, or there was no answer in time.
        """
        (answer,) = await self.send([(subject, payload, headers)])
        return result(await answer, subject)

    async def send(
        self,
        requests: Sequence[tuple[str, bytes | memoryview, dict[str, str] | None]],
        timeout: float | None = None,
        stay: bool = False,
    ) -> list[asyncio.Future[NatsMessage]]:
        """Sends requests in their order over one connection, and returns the futures of their answers.

        A server that does not answer in time is left for another one, which may be on the side of the majority.

        Args:
            requests: The subject, the payload and the headers of each request.
            timeout: Seconds to wait for each answer.
            stay: Keep the connection without an answer too.
        """
        timeout = timeout or self.options.timeout
        connection = await self._connected(timeout)
        answers = []
        for subject, payload, headers in requests:
            answer = await connection.send(subject, payload, headers, timeout, stay)
            answer.add_done_callback(_retrieved)
            answers.append(answer)
        return answers

    async def call(
        self, name: str, request: dict[str, Any] | None = None, timeout: float | None = None, stay: bool = False
    ) -> Any:
        """Calls JetStream's API.

        Args:
            name: The end of the subject, as in `STREAM.INFO.name`.
            request: The request.
            timeout: Seconds to wait for the answer.
            stay: Keep the connection without an answer too.

        Returns:
            The answer.

        Raises:
            NatsApiError: The answer is an error.
            JournalUnavailable: There is no answer.
        """
        subject = self.api + name
        (future,) = await self.send([(subject, json.dumps(request).encode() if request else b"", None)], timeout, stay)
        message = result(await future, subject)
        answer = json.loads(message.data)
        if error := answer.get("error"):
            raise NatsApiError(error.get("err_code", 0), error.get("description", ""))
        return answer

    async def notify(self, subject: str, payload: bytes = b"") -> None:
        """Publishes a message that nothing answers; without a connection it is lost."""
        if self._current is not None:
            with suppress(nats.errors.Error, OSError):
                await self._current.client.publish(subject, payload)

    def leave(self, reason: str) -> None:
        """Ends the connection to the current server, and connects to another one."""
        if self._current is not None:
            self._current.lose(reason)

    @asynccontextmanager
    async def subscribed(self, subject: str = "") -> AsyncIterator[tuple[str, asyncio.Queue[NatsMessage | None]]]:
        """Subscribes to a subject; yields it and the queue of its messages, with None when the connection is lost.

        Args:
            subject: The subject; empty for a new one.

        Raises:
            JournalUnavailable: There is no connection.
        """
        connection = await self._connected(self.options.timeout)
        queue: asyncio.Queue[NatsMessage | None] = asyncio.Queue()

        async def put(message: NatsMessage) -> None:
            queue.put_nowait(message)

        async def watch() -> None:
            await connection.was_lost.wait()
            queue.put_nowait(None)

        subject = subject or connection.client.new_inbox()
        try:
            subscription = await connection.client.subscribe(
                subject, cb=put, pending_msgs_limit=0, pending_bytes_limit=0
            )
        except (nats.errors.Error, OSError) as error:
            raise JournalUnavailable(f"{without_password(connection.server)}: {_text(error)}") from error
        watcher = asyncio.create_task(watch())
        try:
            yield subject, queue
        finally:
            watcher.cancel()
            with suppress(nats.errors.Error, OSError):
                await subscription.unsubscribe()

    async def close(self) -> None:
        """Ends the connection."""
        self.closed = True
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait([self._connecting])
        if self._current is not None:
            self._current.lose("the journal is closed")
        if self._ending:
            await asyncio.wait(self._ending)

    async def _connected(self, timeout: float) -> _ServerConnection:
        if self._current is None and not self.closed:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._ready.wait()
        if self._current is None:
            raise self._unreachable()
        return self._current

    def _unreachable(self) -> JournalUnavailable:
        if self.closed:
            return JournalUnavailable("the journal is closed")
        troubles = "; ".join(f"{server}: {trouble}" for server, trouble in self._troubles.items())
        todo = next((todo for text, todo in _TODO.items() if text in troubles.lower()), _START)
        return JournalUnavailable(f"no NATS server is reachable ({troubles}); {todo}")

    async def _round(self) -> None:
        """Tries each server once."""
        for _ in self._servers:
            server = self._servers.pop(0)
            self._servers.append(server)  # the next attempt begins with another one
            try:
                connection = await self._connect(server)
            except (nats.errors.Error, OSError, TimeoutError, ValueError) as error:
                self._troubles[without_password(server)] = _text(error)
                continue
            self._troubles.clear()
            self._current = connection
            self._ready.set()
            return

    async def _connect(self, server: str) -> _ServerConnection:
        client = NatsClient()
        connection = _ServerConnection(client, server, self._lost)
        errors: list[Exception] = []
        timeout = min(self.options.timeout, MAX_CONNECT_TIMEOUT_S)

        async def failed(error: Exception) -> None:
            errors.append(error)
            del errors[:-1]
            if found := _DENIED.search(str(error)):
                self._deny(connection, found[1].lower(), _text(error))

        async def closed() -> None:
            connection.lose(f"{without_password(server)} has closed the connection{_reason(errors)}")

        try:
            async with asyncio.timeout(timeout):
                await client.connect(
                    [server],
                    error_cb=failed,
                    closed_cb=closed,
                    name=self.options.name,
                    allow_reconnect=False,
                    max_reconnect_attempts=1,
                    reconnect_time_wait=0,
                    connect_timeout=timeout,
                    ping_interval=PING_INTERVAL_S,
                    flush_timeout=self.options.timeout,
                    **self.options.of_client(),
                )
                writer = getattr(client._transport, "_io_writer", None)
                if writer is not None and writer.get_extra_info("ssl_object") is not None:
                    # nats-py starts TLS below this protocol, which then answers the end of the connection as without
                    # TLS, and asyncio warns.
                    writer.transport.get_protocol()._over_ssl = True
                await connection.start()
        except BaseException as error:
            self._end(client)
            if isinstance(error, nats.errors.NoServersError) and errors:
                raise errors[-1] from None
            raise
        return connection

    def _deny(self, connection: _ServerConnection, subject: str, text: str) -> None:
        """Takes the answer that the user lacks a permission. nats-py has made its subject lower case."""
        reason = f"{without_password(connection.server)}: {text}; give the user of the brokers this permission"
        if subject not in self._denied and not subject.startswith("_inbox."):
            self._denied.add(subject)
            _log.error("%s", reason)
        connection.deny(subject, reason)

    def _lost(self, connection: _ServerConnection) -> None:
        self._end(connection.client)
        if connection is not self._current:
            return
        self._current = None
        self._ready.clear()
        self._troubles[without_password(connection.server)] = connection.reason
        if not self.closed:
            self._connecting = asyncio.get_running_loop().create_task(self._reconnect())

    async def _reconnect(self) -> None:
        backoff = MIN_BACKOFF_S
        while True:
            await self._round()
            if self._current is not None:
                return
            await asyncio.sleep(backoff)
            backoff = min(2 * backoff, MAX_BACKOFF_S)

    def _end(self, client: NatsClient) -> None:
        """Closes a client in the background, as a server that does not read makes that wait."""
        task = asyncio.get_running_loop().create_task(_closed(client))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)


def result(message: NatsMessage, subject: str) -> NatsMessage:
    """Returns an answer.

    Raises:
        NoResponders: No server listens to the subject.
    """
    if not message.data and message.headers and message.headers.get("Status") == "503":
        raise NoResponders(f"no NATS server listens to {subject}")
    return message


def _retrieved(answer: asyncio.Future[NatsMessage]) -> None:
    """Marks the error of an answer as seen: the caller may have gone after another answer's error."""
    if not answer.cancelled():
        answer.exception()


async def _closed(client: NatsClient) -> None:
    transport = client._transport
    with suppress(Exception):
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await client.close()
            return
    writer = getattr(transport, "_io_writer", None)
    if writer is not None:
        writer.transport.abort()


def _reason(errors: list[Exception]) -> str:
    return f": {_text(errors[-1])}" if errors else ""


def _text(error: BaseException) -> str:
    return str(error).removeprefix("nats: ") or type(error).__name__
