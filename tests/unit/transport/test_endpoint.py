"""Endpoint texts: what they mean, what is refused and why, and that they come out as they went in."""

import dataclasses
import errno
import os

import pytest

from omq.errors import BindError, EndpointError
from omq.transport import parse_endpoint, refusal
from omq.transport.inproc import InprocEndpoint
from omq.transport.ipc import IpcEndpoint
from omq.transport.tcp import TcpEndpoint

BOTH = [True, False]


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("tcp://*:*", TcpEndpoint(None, 0)),
        ("tcp://*:0", TcpEndpoint(None, 0)),
        ("tcp://*:5555", TcpEndpoint(None, 5555)),
        ("tcp://127.0.0.1:*", TcpEndpoint("127.0.0.1", 0)),
        ("tcp://127.0.0.1:0", TcpEndpoint("127.0.0.1", 0)),
        ("tcp://lo:*", TcpEndpoint("lo", 0)),
        ("tcp://eth0.100:5555", TcpEndpoint("eth0.100", 5555)),
        ("tcp://[::]:*", TcpEndpoint("::", 0)),
        ("ipc://*", IpcEndpoint(None)),
    ],
)
def test_binding_knows_wildcards_and_connecting_refuses_them(text, meaning):
    assert parse_endpoint(text, bind=True) == meaning
    if "*" in text or text.endswith(":0"):
        with pytest.raises(EndpointError, match="only for binding"):
            parse_endpoint(text, bind=False)


@pytest.mark.parametrize("bind", BOTH)
@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("tcp://127.0.0.1:5555", TcpEndpoint("127.0.0.1", 5555)),
        ("tcp://localhost:1", TcpEndpoint("localhost", 1)),
        ("tcp://node_7.example.org.:65535", TcpEndpoint("node_7.example.org.", 65535)),
        ("tcp://bücher.example:80", TcpEndpoint("bücher.example", 80)),
        ("tcp://[::1]:5555", TcpEndpoint("::1", 5555)),
        ("tcp://::1:5555", TcpEndpoint("::1", 5555)),
        ("tcp://[fe80::1%eth0]:5555", TcpEndpoint("fe80::1%eth0", 5555)),
        ("tcp://host:05555", TcpEndpoint("host", 5555)),
        ("ipc:///tmp/a b/é.sock", IpcEndpoint("/tmp/a b/é.sock")),
        ("ipc://relative", IpcEndpoint("relative")),
        ("ipc://@name", IpcEndpoint("@name")),
        ("inproc://any thing://*", InprocEndpoint("any thing://*")),
    ],
)
def test_plain_endpoints_mean_the_same_on_both_sides(text, meaning, bind):
    assert parse_endpoint(text, bind=bind) == meaning


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("tcp://192.0.2.1:4000;host:5555", ("192.0.2.1", 4000)),
        ("tcp://192.0.2.1:*;host:5555", ("192.0.2.1", 0)),
        ("tcp://[::1]:0;host:5555", ("::1", 0)),
        ("tcp://*:4000;host:5555", ("*", 4000)),
        ("tcp://eth0:4000;host:5555", ("eth0", 4000)),
    ],
)
def test_a_connection_may_name_its_source(text, source):
    assert parse_endpoint(text, bind=False) == TcpEndpoint("host", 5555, source)
    with pytest.raises(EndpointError, match="only for connecting"):
        parse_endpoint(text, bind=True)


@pytest.mark.parametrize("bind", BOTH)
@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "does not start with a transport"),
        ("127.0.0.1:5555", "does not start with a transport"),
        ("tcp:/127.0.0.1:5555", "does not start with a transport"),
        ("://x", "unknown transport ''; known transports are tcp, ipc, inproc"),
        ("TCP://127.0.0.1:5555", "unknown transport 'TCP'"),
        ("carrier+pigeon://x", "unknown transport 'carrier"),
        ("tcp://", "nothing follows"),
        ("ipc://", "nothing follows"),
        ("inproc://", "nothing follows"),
        ("tcp://localhost", "the port is missing"),
        ("tcp://localhost:", "the port is missing"),
        ("tcp://:5555", "the host is missing"),
        ("tcp://[]:5555", "'' is not a valid IPv6 address"),
        ("tcp://localhost:invalid", "port 'invalid' is not a number"),
        ("tcp://localhost:65536", "port '65536' is not a number from 1 to 65535"),
        ("tcp://localhost:-1", "port '-1'"),
        ("tcp://localhost:+1", "port"),
        ("tcp://localhost:1_0", "port '1_0'"),
        ("tcp://localhost: 80", "port ' 80'"),
        ("tcp://localhost:80/", "port '80/'"),
        ("tcp://localhost:٣", "port '٣'"),
        ("tcp://localhost:" + "9" * 10_000, "is not a number"),
        ("tcp://in val id:1234", "'in val id' is not a valid host name"),
        ("tcp://user@host:1234", "is not a valid host name"),
        ("tcp://a..b:1234", "'a..b' is not a valid host name"),
        (
            f"tcp://{'.'.join(['ü' * 20] * 11)}:1234",
            "is not a valid host name",
        ),  # 255 characters at most where it is encoded
        ("tcp://" + "a" * 300 + ":1", "300 characters, more than 255"),
        ("tcp://host\0:1234", "is not a valid host name"),
        ("tcp://127.0.0.1:1:2", "'127.0.0.1:1' is not a valid IPv6 address"),
        ("tcp://[::1:5555", "not closed"),
        ("tcp://[::1]x:5555", "not closed"),
        ("tcp://[127.0.0.1]:5555", "is not a valid IPv6 address"),
        ("ipc://@", "the abstract name is empty"),
        ("ipc://a\0b", "NUL"),
        ("ipc://\ud800", "cannot be encoded"),
    ],
)
def test_what_is_no_endpoint_is_refused_with_its_text_and_the_reason(text, why, bind):
    with pytest.raises(EndpointError) as caught:
        parse_endpoint(text, bind=bind)
    assert why in str(caught.value)
    assert repr(text)[:100] in str(caught.value)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("text", ["tcp://;host:1", "tcp://host:1;", "tcp://a:1;b:2;c:3", "tcp://a;b:2"])
def test_a_source_has_to_be_a_whole_address(text):
    with pytest.raises(EndpointError):
        parse_endpoint(text, bind=False)


@pytest.mark.parametrize("value", [b"tcp://127.0.0.1:5555", None, 5555, ["tcp://127.0.0.1:5555"]])
def test_an_endpoint_is_a_str(value):
    with pytest.raises(EndpointError, match=type(value).__name__):
        parse_endpoint(value, bind=True)


@pytest.mark.parametrize("bind", BOTH)
@pytest.mark.parametrize("first", ["/", "@"])
def test_a_path_of_107_bytes_fits_and_one_more_does_not(bind, first):
    longest = first + "x" * 106
    assert parse_endpoint(f"ipc://{longest}", bind=bind) == IpcEndpoint(longest)
    with pytest.raises(EndpointError, match="the path has 108 bytes; at most 107 are allowed"):
        parse_endpoint(f"ipc://{longest}x", bind=bind)


def test_the_limit_counts_bytes_and_not_characters():
    with pytest.raises(EndpointError, match="110 bytes"):
        parse_endpoint("ipc://" + "é" * 55, bind=True)


def test_a_path_that_is_no_text_survives():
    path = os.fsdecode(b"/tmp/\xff")
    assert str(parse_endpoint(f"ipc://{path}", bind=True)) == f"ipc://{path}"


@pytest.mark.parametrize(
    ("text", "again"),
    [
        ("tcp://*:0", "tcp://*:*"),
        ("tcp://lo:05555", "tcp://lo:5555"),
        ("tcp://::1:5555", "tcp://[::1]:5555"),
        ("ipc://*", "ipc://*"),
        ("ipc://@a", "ipc://@a"),
        ("inproc://a", "inproc://a"),
    ],
)
def test_an_endpoint_gives_its_text_again(text, again):
    assert str(parse_endpoint(text, bind=True)) == again
    assert parse_endpoint(again, bind=True) == parse_endpoint(text, bind=True)


@pytest.mark.parametrize("text", ["tcp://[::1]:4000;[::1]:5555", "tcp://*:*;host:5555"])
def test_an_endpoint_with_a_source_gives_its_text_again(text):
    assert str(parse_endpoint(text, bind=False)) == text


def test_endpoints_are_values():
    assert len({parse_endpoint("tcp://a:1", bind=side) for side in BOTH}) == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        parse_endpoint("tcp://a:1", bind=True).port = 2


def test_only_names_with_an_at_sign_are_abstract():
    assert IpcEndpoint("@a").abstract
    assert not IpcEndpoint("a@").abstract
    assert not IpcEndpoint(None).abstract


def test_a_refusal_names_the_endpoint_and_the_cause_and_keeps_its_errno():
    error = refusal(BindError, "tcp://*:1", OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE)))
    assert isinstance(error, BindError)
    assert error.errno == errno.EADDRINUSE
    assert "tcp://*:1: address already in use" in str(error)
