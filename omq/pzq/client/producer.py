"""The blocking producer."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, NoReturn, Self

import omq
from omq.errors import ReceiveTimeout
from omq.pzq.client.client import (
    DEFAULT_TIMEOUT_S,
    MAX_IN_FLIGHT,
    RETRY_DELAY_S,
    Body,
    PendingSends,
    device_options,
)
from omq.socket_base import check_timeout
from omq.types import UNSET, Unset
from omq.unpatched import threading

__all__ = ["Producer"]


class Producer:
    """Sends messages to a device. Threads may share it: one call runs at a time.

        with omq.pzq.Producer("tcp://127.0.0.1:11131") as producer:
            producer.send(b"job")

    A message without an answer is sent again each second, until the timeout. The device detects it by the producer's
    name and the sequence of the message, and stores it once.

    Args:
        endpoint: The device's receive endpoint, or those of all devices of a cluster.
        timeout: Seconds that a call waits for the device; `None` waits for ever.
        producer: The prefix of the producer's name in the frames, 1 to 79 bytes; the rest of the name is random.
        **options: Options of the socket; see `omq.Options`.

    Raises:
        EndpointError: The endpoint is not valid.
        OptionError: An option is not valid.
        UsageError: *producer* has a wrong size, or begins with a zero byte.
        ValueError: *timeout* is negative or NaN.
        TypeError: *timeout* is not a number, or *producer* is not bytes.
    """

    def __init__(
        self,
        endpoint: str | Iterable[str],
        *,
        timeout: float | None = DEFAULT_TIMEOUT_S,
        producer: bytes | None = None,
        **options: Any,
    ) -> None:
        self._timeout = check_timeout(timeout)
        self._pending = PendingSends(producer)
        self._lock = threading.Lock()
        self._socket = omq.DEALER(**{**device_options(endpoint), **options})

    def send(
        self,
        body: Body,
        *,
        headers: Iterable[bytes] = (),
        id: bytes | None = None,
        timeout: float | Unset | None = UNSET,
    ) -> None:
        """Sends a message, and waits until it is stored.

        Args:
            body: Bytes, or a sequence of parts.
            headers: Frames for the device, none of them empty.
            id: The id of the message in the answer; by default a number.
            timeout: Seconds to wait; `None` waits for ever; the default is the producer's `timeout`.

        Raises:
            Refused: The device has not stored the message; the text has the reason.
            NotReplicated: The message is stored, but on fewer nodes than the device's `replicas` option requires.
            ProduceTimeout: The device has not answered in time; the message may be stored.
            UsageError: A header is empty, or the body has no parts.
            TypeError: The body, a header or *id* is not bytes.
        """
        with self._call(timeout) as deadline:
            self._put(self._pending.compose(0, body, headers, id), deadline)
            self._drain(0, deadline)
            self._pending.result()

    def send_many(self, bodies: Iterable[Body], *, timeout: float | Unset | None = UNSET) -> int:
        """Sends messages, up to `MAX_IN_FLIGHT` at a time, and waits until all are stored.

        Args:
            bodies: The body of each message, as in `send`.
            timeout: Seconds for the whole call; see `send`.

        Returns:
            The number of messages.

        Raises:
            Refused: The messages at `indexes` are not stored; all others are.
            ProduceTimeout: The device has not answered in time; messages may be stored.
        """
        with self._call(timeout) as deadline:
            count = 0
            for index, body in enumerate(bodies):
                self._put(self._pending.compose(index, body), deadline)
                self._drain(MAX_IN_FLIGHT - 1, deadline)
                count += 1
            self._drain(0, deadline)
            self._pending.result()
            return count

    @contextmanager
    def _call(self, timeout: float | Unset | None) -> Iterator[tuple[float, float | None]]:
        """Runs one call at a time; yields its timeout and its deadline."""
        seconds = self._timeout if isinstance(timeout, Unset) else check_timeout(timeout)
        end = None if seconds is None else time.monotonic() + seconds
        if not self._lock.acquire(timeout=-1 if seconds is None else min(seconds, threading.TIMEOUT_MAX)):
            raise self._pending.busy_error(seconds or 0.0)
        try:
            self._pending.reset()
            yield seconds or 0.0, end
        finally:
            self._lock.release()

    def _put(self, frames: list[bytes], deadline: tuple[float, float | None]) -> None:
        _, end = deadline
        if not frames:
            return
        try:
            self._socket.send_multipart(frames, timeout=None if end is None else max(end - time.monotonic(), 0))
        except omq.SendTimeout:
            self._raise_timeout(deadline[0])

    def _drain(self, limit: int, deadline: tuple[float, float | None]) -> None:
        """Waits until at most *limit* messages have no answer."""
        seconds, end = deadline
        while len(self._pending) > limit:
            remaining = RETRY_DELAY_S if end is None else min(end - time.monotonic(), RETRY_DELAY_S)
            try:
                self._pending.answered(self._socket.recv_multipart(timeout=max(remaining, 0)))
            except ReceiveTimeout:
                if end is not None and time.monotonic() >= end:
                    self._raise_timeout(seconds)
                for frames in self._pending.to_resend():
                    self._put(frames, deadline)

    def _raise_timeout(self, seconds: float) -> NoReturn:
        """Raises a timeout. Without a connected device, the error of the connection is its cause."""
        cause = None
        try:
            self._socket.wait_connected(timeout=0)
        except omq.Timeout as error:
            cause = error
        raise self._pending.timeout_error(seconds) from cause

    def close(self) -> None:
        """Closes the producer. Idempotent."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
