"""The HTTP listener, asked over a real connection."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from omq.errors import BindError
from omq.serving.http import HttpListener
from tests.unit.conftest import on_both_loops

pytestmark = on_both_loops

log = logging.getLogger("omq.test")


async def answer(request: web.Request) -> web.Response:
    return web.Response(text="ok\n")


async def fail(request: web.Request) -> web.Response:
    raise RuntimeError("a secret")


def listener() -> HttpListener:
    return HttpListener({"/ok": answer, "/fails": fail}, log)


@asynccontextmanager
async def served() -> AsyncIterator[tuple[str, aiohttp.ClientSession]]:
    one = listener()
    url = await one.start("127.0.0.1:0")
    try:
        async with aiohttp.ClientSession() as session:
            yield url, session
    finally:
        await one.close()


@pytest.mark.parametrize(
    ("method", "path", "status", "text"),
    [
        ("GET", "/ok", 200, "ok\n"),
        ("HEAD", "/ok", 200, ""),
        ("GET", "/else", 404, "Not Found\n"),
        ("GET", "/<script>", 404, "Not Found\n"),
        ("POST", "/ok", 405, "Method Not Allowed\n"),
        ("GET", "/fails", 500, "the server has failed to answer\n"),
    ],
)
async def test_every_answer_is_hardened(method: str, path: str, status: int, text: str) -> None:
    async with served() as (url, session), session.request(method, url + path) as got:
        assert (got.status, await got.text()) == (status, text)
        assert got.headers["Server"] == "omq"
        assert got.headers["X-Content-Type-Options"] == "nosniff"
        assert got.headers["Cache-Control"] == "no-store"
        assert got.headers["Referrer-Policy"] == "no-referrer"
        assert ("GET" in got.headers.get("Allow", "")) == (status == 405)


async def test_a_peer_that_does_not_speak_http_disturbs_no_other() -> None:
    async with served() as (url, session):
        host, port = url.removeprefix("http://").split(":")
        for nonsense in (b"\x00" * 100 + b"\r\n\r\n", b"GET " + b"x" * 100_000, b"GET / HTTP/9.9\r\n\r\n"):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(nonsense)
            head = await asyncio.wait_for(reader.readline(), 10)
            assert head.split()[1:2] == [b"400"]
            writer.close()
            await writer.wait_closed()
        async with session.get(f"{url}/ok") as answer:
            assert answer.status == 200


async def test_a_place_that_is_taken() -> None:
    async with served() as (url, _):
        one = listener()
        with pytest.raises(BindError, match=re.escape(url.removeprefix("http://"))):
            await one.start(url.removeprefix("http://"))
        await one.close()


async def test_closing_ends_idle_connections_and_may_be_repeated() -> None:
    one = listener()
    url = await one.start("127.0.0.1:0")
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    await one.close()
    await one.close()
    assert await asyncio.wait_for(reader.read(), 10) == b""
    writer.close()
    await writer.wait_closed()


async def test_a_silent_connection_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omq.serving.http.MAX_CONNECTIONS", 5)
    async with served() as (url, session):
        host, port = url.removeprefix("http://").split(":")
        idle = [await asyncio.open_connection(host, int(port)) for _ in range(20)]
        for reader, _ in idle[:15]:
            assert await asyncio.wait_for(reader.read(), 10) == b""
        async with session.get(f"{url}/ok") as answer:
            assert answer.status == 200
        for _, writer in idle:
            writer.close()


async def test_what_is_no_request_is_answered_and_makes_no_noise(caplog: pytest.LogCaptureFixture) -> None:
    async with served() as (url, _):
        host, port = url.removeprefix("http://").split(":")
        for garbage in (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\0" * 20_000 + b"\r\n\r\n"):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(garbage)
            assert b" 400 " in await reader.readline()
            writer.close()
    assert [record.getMessage() for record in caplog.records if record.levelno > 10] == []
