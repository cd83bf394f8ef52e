"""Answers of a WebSocket's server; errors can be logged, as they quote what the peer has sent."""

import pytest
from wsproto.utilities import generate_accept_token

from omq.errors import HandshakeError
from omq.transport.upgrade import WebSocketUpgrade


@pytest.mark.parametrize("protocol", [b"ZWS\x01", b"\x7f"], ids=["control", "delete"])
def test_a_sub_protocol_that_was_not_offered_is_quoted(protocol):
    client = WebSocketUpgrade("127.0.0.1:5555", "/", as_client=True)
    request = client.start(("ZWS2.0/NULL",))
    key = next(line.split(b": ")[1] for line in request.split(b"\r\n") if line.lower().startswith(b"sec-websocket-key"))
    with pytest.raises(HandshakeError) as caught:
        client.receive(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: %s\r\nSec-WebSocket-Protocol: %s\r\n\r\n" % (generate_accept_token(key), protocol)
        )
    assert str(caught.value).isprintable()


INTERIM = [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\n\r\n"]


@pytest.mark.parametrize("portion", [1, 7, 10_000])
def test_interim_responses_may_come_before_the_final_one(portion):
    """RFC 9110, 15.2."""
    client = WebSocketUpgrade("127.0.0.1:5555", "/", as_client=True)
    request = client.start(("ZWS2.0/NULL",))
    key = next(line.split(b": ")[1] for line in request.split(b"\r\n") if line.lower().startswith(b"sec-websocket-key"))
    answer = b"".join(INTERIM) + (
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Accept: %s\r\nSec-WebSocket-Protocol: ZWS2.0/NULL\r\n\r\n" % generate_accept_token(key)
    )
    for begin in range(0, len(answer), portion):
        assert client.receive(answer[begin : begin + portion]) == b""
    assert client.protocol == "ZWS2.0/NULL"
