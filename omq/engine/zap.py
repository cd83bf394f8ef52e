"""Admission of peers: by the option `security`, and by a ZAP handler of the same context if one is bound (RFC 27)."""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
from collections.abc import Mapping
from typing import Any, Final

from omq._core.calls.call import AsyncCore
from omq.engine.auth_decision import AuthDecision
from omq.engine.driver import TASKS, LoopDriver
from omq.engine.views import SocketView
from omq.errors import HandshakeError, RemoteProtocolError
from omq.options import Options
from omq.transport import local_endpoint
from omq.types import SocketType
from omq.zmtp.command import parse_properties, quoted
from omq.zmtp.curve import CookieKeys
from omq.zmtp.handshake import Handshake
from omq.zmtp.handshake_cache import CachedHandshake
from omq.zmtp.mechanism import Mechanism, Question
from omq.zmtp.null import Null
from omq.zmtp.websocket import Upgrade, WebSocketHandshake

log = logging.getLogger("omq")

#: Where a handler binds (RFC 27, Architecture).
ENDPOINT: Final = local_endpoint("zeromq.zap.01")

_VERSION: Final = b"1.0"
_REQUEST_ID: Final = b"1"  # each question has its own connection, as in libzmq
_REPLY_FRAMES: Final = 7  # including the delimiter
_STATUS: Final = re.compile(rb"[2345]00")
_MAX_TEXT_BYTES: Final = 255  # of a string field
_NOT_IN_REASON: Final = re.compile(rb"[^!-~]")  # RFC 23, The NULL Security Mechanism: a reason has no blanks


class Authenticator:
    """Decides which peers one socket admits.

    Args:
        engine: The socket.
    """

    def __init__(self, engine: SocketView) -> None:
        self._engine = engine
        self._cookies: CookieKeys | None = None
        self._timer: asyncio.TimerHandle | None = None

    def handshake(
        self,
        socket_type: SocketType,
        properties: Mapping[bytes, bytes],
        options: Options,
        upgrade: Upgrade | None = None,
    ) -> Handshake | CachedHandshake | WebSocketHandshake:
        """Returns a new handshake for one connection.

        Args:
            socket_type: Our type, which speaks ZMTP.
            properties: Our metadata.
            options: The options of its endpoint.
            upgrade: Upgrades the connection to a WebSocket; `None` if it is not one.
        """
        # RFC 27, The NULL Mechanism: libzmq asks the handler only where a domain is set.
        asks = options.security is not None or bool(options.zap_domain)
        if upgrade is not None:
            return WebSocketHandshake(
                upgrade,
                socket_type=socket_type,
                mechanism=self._mechanism(options) if asks else Null(),
                properties=properties,
                allow_unsecured=not asks,
            )
        if not asks:
            return CachedHandshake(socket_type=socket_type, properties=properties)
        return Handshake(socket_type=socket_type, mechanism=self._mechanism(options), properties=properties)

    def _mechanism(self, options: Options) -> Mechanism:
        if options.security is None:
            return Null(ask=True)
        if self._cookies is None and options.security.as_server:
            self._cookies = CookieKeys()
        mechanism: Mechanism = options.security.begin(self._cookies)
        return mechanism

    def watch_cookies(self) -> None:
        """Starts the timer that rotates cookie keys, while they are in use; called after each step of a handshake."""
        if self._timer is None and self._cookies is not None and self._cookies.in_use:
            self._timer = self._engine.loop.call_later(CookieKeys.LIFETIME, self._rotate)

    def _rotate(self) -> None:
        assert self._cookies is not None
        self._timer = None
        self._cookies.rotate()
        self.watch_cookies()

    def leave_loop(self) -> None:
        """Stops the timer: the loop ends, or has ended."""
        if self._timer is not None:
            if self._engine.in_loop:
                self._timer.cancel()
            self._timer = None

    def stop(self) -> None:
        """Stops for good: the socket is closed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._cookies = None

    async def decide(self, question: Question, address: str, options: Options) -> AuthDecision:
        """Returns the decision whether to admit a peer. The caller has a timeout of its own.

        Args:
            question: The question of its mechanism.
            address: The peer's IP address; empty over ipc.
            options: The options of its endpoint.
        """
        security = options.security
        answer: Any = None
        user_id = None
        if security is not None:
            user_id = security.user_of(question.credentials)
            try:
                answer = security.judge(question.credentials)
                if inspect.isawaitable(answer):
                    answer = await answer
            except (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt, SystemExit):
                raise
            except HandshakeError as refusal:  # may be temporary; its text is for the peer
                text = str(refusal).encode("ascii", "backslashreplace")[:_MAX_TEXT_BYTES]
                return AuthDecision(_NOT_IN_REASON.sub(b"_", text))
            except BaseException as error:  # of any kind: the peer must get an answer
                # Its text may hold a password, and so may the frames of its traceback: neither is logged.
                log.error("%s: authentication raised %s%s", security.name, type(error).__name__, _where(error))
                return AuthDecision(b"500", f"the function that decides raised {type(error).__name__}")
            if answer is not None and not answer:
                return AuthDecision(b"400", f"{_subject(question, user_id)} is not authorized")
        optional = answer is not None or question.mechanism != b"PLAIN"
        return await self._ask(question, address, options, user_id, optional)

    async def _ask(
        self, question: Question, address: str, options: Options, user_id: str | None, optional: bool
    ) -> AuthDecision:
        """Asks the handler, if there is one, and if it must be asked."""
        if not options.zap_enforce_domain or options.zap_domain:
            if self._engine.context.inproc.is_open(ENDPOINT):
                return await self._ask_handler(question, address, options, user_id)
            if options.zap_enforce_domain:
                return AuthDecision(b"", f"zap_enforce_domain is set and no ZAP handler is bound at {ENDPOINT}")
        if optional:
            return AuthDecision(user_id=user_id)
        return AuthDecision(
            b"", f"PlainServer(None) leaves the decision to a ZAP handler, but none is bound at {ENDPOINT}"
        )

    async def _ask_handler(
        self, question: Question, address: str, options: Options, user_id: str | None
    ) -> AuthDecision:
        request = [
            b"",
            _VERSION,
            _REQUEST_ID,
            options.zap_domain.encode(),
            address.encode("ascii"),
            options.identity,
            question.mechanism,
            *question.credentials,
        ]
        with_handler = _ZapClient(self._engine)
        try:
            reply = await with_handler.ask(request)
        except EOFError:
            return AuthDecision(b"", "the ZAP handler closed the connection without an answer")
        finally:
            with_handler.stop()
        try:
            return _read(reply, user_id)
        except RemoteProtocolError as error:
            return AuthDecision(b"", str(error))


class _ZapClient(AsyncCore):
    """A DEALER that asks the handler one question (RFC 27, Architecture)."""

    def __init__(self, engine: SocketView) -> None:
        options = Options(linger=0.0, reconnect_interval=None)
        driver = LoopDriver(self)
        self._engine = engine.sibling(SocketType.DEALER, options, driver)
        pattern = self._engine.pattern
        self._assemble(pattern.recv_queue, pattern.send_queue, *TASKS, driver.poller)
        self._set_loop(engine.loop)
        self._engine.attach(engine.loop)

    def _attach(self, loop: asyncio.AbstractEventLoop | None) -> None:
        pass

    async def ask(self, request: list[bytes]) -> list[bytes]:
        """Asks one question, and returns the answer.

        Raises:
            EOFError: The handler closed the connection.
        """
        engine = self._engine
        engine.endpoints.connect(ENDPOINT)
        await engine.wait_until(lambda: bool(engine.sessions), None)
        await self.send_multipart(request)
        lost = asyncio.ensure_future(engine.wait_until(lambda: not engine.sessions, None))
        reply = asyncio.ensure_future(self.recv_multipart())
        try:
            await asyncio.wait((reply, lost), return_when=asyncio.FIRST_COMPLETED)
            if reply.done():
                return reply.result()
            raise EOFError
        finally:
            lost.cancel()
            reply.cancel()

    def stop(self) -> None:
        self._mark_closed()
        self._engine.stop()


def _read(reply: list[bytes], user_id: str | None) -> AuthDecision:
    """Reads a handler's reply (RFC 27, Message Format).

    Raises:
        RemoteProtocolError: The reply is malformed.
    """
    if len(reply) != _REPLY_FRAMES:
        raise RemoteProtocolError(f"a ZAP reply of {len(reply)} frames instead of {_REPLY_FRAMES} (RFC 27)")
    delimiter, version, request_id, status, text, user_name, metadata = reply
    if delimiter:
        raise RemoteProtocolError("a ZAP reply whose delimiter is not empty (RFC 27)")
    if version != _VERSION:
        raise RemoteProtocolError(f"a ZAP reply of version {quoted(version)} instead of '1.0' (RFC 27)")
    if request_id != _REQUEST_ID:
        raise RemoteProtocolError(f"a ZAP reply to the request {quoted(request_id)}, which was not made (RFC 27)")
    if not _STATUS.fullmatch(status):
        raise RemoteProtocolError(f"a ZAP reply with the status {quoted(status)}: 200, 300, 400 or 500 (RFC 27)")
    if len(text) > _MAX_TEXT_BYTES or len(user_name) > _MAX_TEXT_BYTES:
        raise RemoteProtocolError("a ZAP reply with a text of more than 255 bytes (RFC 27)")
    try:
        properties = parse_properties(metadata)
    except RemoteProtocolError as error:
        raise RemoteProtocolError(f"a ZAP reply with {error}") from None
    if status == b"200":
        return AuthDecision(user_id=user_name.decode("utf-8", "backslashreplace") or user_id, metadata=properties)
    # RFC 27: 300 is temporary. libzmq closes the connection without ERROR, so that the peer reconnects.
    refusal = b"" if status == b"300" else status
    return AuthDecision(refusal, f"the ZAP handler answers {status.decode()} {quoted(text, 255)}")


def _subject(question: Question, user_id: str | None) -> str:
    return f"the {'key' if question.mechanism == b'CURVE' else 'user'} {user_id!r}"


def _where(error: BaseException) -> str:
    """Returns the place where an error was raised, without values."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f" at {trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace is not None else ""
