"""Scrapes the metrics of a process, each time in a thread of its own."""

from __future__ import annotations

import time
from contextlib import suppress
from http.client import HTTPException
from threading import Thread
from typing import Final
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, build_opener

from omq.cli.top.rows import Scrape, TopRow, rows_of
from omq.errors import UsageError

PATH: Final = "/metrics"
CHUNK_BYTES: Final = 1 << 16
MAX_PAGE_BYTES: Final = 1 << 26


class MonitoredProcess:
    """A process that exports metrics over HTTP.

    Args:
        endpoint: Its endpoint, as the user has given it.
        timeout: Seconds that a scrape may take.

    Raises:
        UsageError: The endpoint is not valid.
    """

    def __init__(self, endpoint: str, timeout: float) -> None:
        self._url = url_of(endpoint)
        self._timeout = timeout
        self._name = self._url.removeprefix("http://").removesuffix(PATH)
        self._rows = [TopRow(self._name, state="no answer yet")]
        self._scrape: Scrape | None = None
        self._thread: Thread | None = None
        self._started = 0.0
        #: Whether there has been an answer.
        self.has_answered = False

    @property
    def is_up(self) -> bool:
        """True if the last scrape had an answer."""
        return self._scrape is not None

    def start(self) -> None:
        """Starts a scrape if the one before has ended."""
        if self._thread is not None and self._thread.is_alive():
            return
        self._started = time.monotonic()
        self._thread = Thread(target=self._run, name=f"omq-top {self._name}", daemon=True)
        self._thread.start()

    def wait(self, until: float) -> None:
        """Waits until the scrape has ended, or until a time of the monotonic clock."""
        if self._thread is not None:
            self._thread.join(max(0.0, until - time.monotonic()))

    def rows(self) -> list[TopRow]:
        """Returns the current rows."""
        thread = self._thread
        if thread is not None and thread.is_alive() and time.monotonic() - self._started > self._timeout:
            return [TopRow(self._name, state=self._no_answer())]  # such as a resolver without an answer
        return self._rows

    def _run(self) -> None:
        try:
            scrape = Scrape.parse(self._fetch(), time.monotonic())
        except (OSError, HTTPException, ValueError) as fault:
            self._rows, self._scrape = [TopRow(self._name, state=self._reason(fault))], None
            return
        self._rows, self._scrape = rows_of(self._name, self._scrape, scrape), scrape
        self.has_answered = True

    def _fetch(self) -> str:
        """Returns the page with the metrics.

        Raises:
            OSError: There was no answer in time, or the answer is an error.
            HTTPException: The answer is not HTTP.
            ValueError: The answer is not text, or too long.
        """
        end = time.monotonic() + self._timeout
        page = bytearray()
        with build_opener(ProxyHandler({})).open(self._url, timeout=self._timeout) as answer:
            while chunk := answer.read1(CHUNK_BYTES):
                page += chunk
                if len(page) > MAX_PAGE_BYTES:
                    raise ValueError(f"more than {MAX_PAGE_BYTES} bytes of metrics")
                if time.monotonic() > end:
                    raise TimeoutError
        return page.decode()

    def _reason(self, fault: Exception) -> str:
        """Returns the state of a process without metrics."""
        if isinstance(fault, HTTPError):
            return f"status {fault.code} of HTTP"
        if isinstance(fault, URLError) and isinstance(fault.reason, Exception):
            fault = fault.reason
        if isinstance(fault, TimeoutError):
            return self._no_answer()
        if isinstance(fault, OSError):
            return f"away: {fault.strerror or fault}"
        return f"not a page of metrics: {fault!r:.80}"

    def _no_answer(self) -> str:
        return f"no answer within {self._timeout:g} s"


def url_of(endpoint: str) -> str:
    """Returns the URL of an endpoint: `PORT`, `HOST:PORT`, or `http://HOST:PORT/PATH` with the default path `/metrics`.

    Raises:
        UsageError: The endpoint is not valid.
    """
    has_scheme = "://" in endpoint
    text = endpoint if has_scheme else f"http://{'127.0.0.1:' * endpoint.isdecimal()}{endpoint}"
    with suppress(ValueError):
        url = urlsplit(text)
        if url.scheme in ("http", "https") and url.hostname and (url.port or (has_scheme and url.port is None)):
            return url._replace(path=url.path if url.path.strip("/") else PATH).geturl()
    raise UsageError(f"{endpoint!r:.80} is not valid; expected HOST:PORT or http://HOST:PORT/metrics")
