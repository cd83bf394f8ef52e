"""SOCKS 5 byte by byte: RFC 1928 and RFC 1929."""

import errno

import pytest

from omq.transport.socks import SocksOpening


def opening(host="far", credentials=None):
    return SocksOpening("proxy:1", host, 77, f"tcp://{host}:77", credentials)


@pytest.mark.parametrize(
    ("host", "encoded"),
    [
        ("10.0.0.1", b"\1\x0a\0\0\1"),
        ("::1", b"\4" + bytes(15) + b"\1"),
        ("fe80::1%lo", b"\4\xfe\x80" + bytes(13) + b"\1"),
        ("far.example", b"\3\x0bfar.example"),
        ("bücher.example", b"\3\x15xn--bcher-kva.example"),
    ],
)
def test_the_request_names_the_endpoint(host, encoded):
    one = opening(host)
    assert one.start() == b"\5\1\0"
    assert one.needed == 2
    assert one.receive(b"\5\0") == b"\5\1\0" + encoded + b"\0\x4d"
    assert one.needed == 4


@pytest.mark.parametrize(("kind", "sizes"), [(b"\1", [6]), (b"\4", [18]), (b"\3", [1, 9])])
def test_the_reply_is_taken_to_its_last_byte_and_no_further(kind, sizes):
    one = opening()
    one.start()
    one.receive(b"\5\0")
    one.receive(b"\5\0\0" + kind)
    for size in sizes:
        assert one.needed == size
        assert one.receive(bytes([7]) * size) == b""
    assert one.needed == 0


def test_a_name_and_a_password_are_offered_alone_and_sent():
    one = opening(credentials=(b"u" * 255, b""))
    assert one.start() == b"\5\1\2"
    assert one.receive(b"\5\2") == b"\1\xff" + b"u" * 255 + b"\0"
    assert one.needed == 2
    assert one.receive(b"\1\0")[:3] == b"\5\1\0"


@pytest.mark.parametrize(
    ("code", "expected"), [(2, errno.EACCES), (3, errno.ENETUNREACH), (4, errno.EHOSTUNREACH), (5, errno.ECONNREFUSED)]
)
def test_a_refusal_has_the_number_that_a_connect_of_our_own_would_have(code, expected):
    one = opening()
    one.start()
    one.receive(b"\5\0")
    with pytest.raises(OSError, match="the proxy proxy:1 did not connect") as caught:
        one.receive(bytes([5, code, 0, 1]))
    assert caught.value.errno == expected


@pytest.mark.parametrize("answer", [b"\0\0", b"\4\0", b"\5\1", b"\5\2", b"\5\xff"], ids=repr)
def test_a_first_answer_that_does_not_fit(answer):
    one = opening()
    one.start()
    with pytest.raises(OSError, match="the proxy proxy:1 "):
        one.receive(answer)


@pytest.mark.parametrize("answer", [b"\5\0", b"\1\1", b"\1\xff"], ids=repr)
def test_an_answer_to_the_password_that_does_not_fit(answer):
    one = opening(credentials=(b"u", b"secret"))
    one.start()
    one.receive(b"\5\2")
    with pytest.raises(OSError, match="the proxy proxy:1 ") as caught:
        one.receive(answer)
    assert "secret" not in str(caught.value)
