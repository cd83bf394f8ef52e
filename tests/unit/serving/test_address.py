"""Addresses of HTTP listeners."""

import json
from typing import Any

import pytest

from omq.errors import UsageError
from omq.serving.address import parse_http_address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:8222", ("127.0.0.1", 8222)),
        ("8222", ("127.0.0.1", 8222)),
        (":0", ("127.0.0.1", 0)),
        ("localhost:*", ("localhost", 0)),
        ("*:80", ("0.0.0.0", 80)),
        ("[::1]:80", ("::1", 80)),
        ("http://127.0.0.1:8222/", ("127.0.0.1", 8222)),
    ],
)
def test_an_address_is_read(text: str, address: tuple[str, int]) -> None:
    assert parse_http_address(text) == address


@pytest.mark.parametrize(
    "text",
    [
        *("", "localhost", "host:99999", "host:-1", "::1:80", "ftp://a:1", "a/b:1", "a:²", "https://a:1"),
        *("a:000080", "a:" + "9" * 5000, "http://", 8222, None),
    ],
)
def test_what_is_not_an_address_is_refused_and_shown(text: Any) -> None:
    with pytest.raises(UsageError, match="is not an address; expected HOST:PORT") as raised:
        parse_http_address(text)
    assert json.dumps(text)[:40] in str(raised.value)
    assert len(str(raised.value)) < 200
