"""From when on a peer may take the handshake for done, and send messages: an end before that costs it nothing."""

import pytest

from omq._core.wire.crypto import Secret
from omq.types import SocketType
from omq.zmtp.curve import CookieKeys, CurveClient, CurveServer
from omq.zmtp.handshake import Handshake
from omq.zmtp.handshake_cache import CachedHandshake
from omq.zmtp.null import Null
from omq.zmtp.plain import PlainClient, PlainServer

KEYS, OWN = Secret(), Secret()


def side(mechanism, socket_type):
    if mechanism == "cached":
        return CachedHandshake(socket_type=socket_type, properties={})
    made = {
        "NULL": lambda: Null(),
        "NULL that asks": lambda: Null(ask=True),
        "PLAIN client": lambda: PlainClient(b"user", b"word"),
        "PLAIN server": lambda: PlainServer(),
        "CURVE client": lambda: CurveClient(KEYS.public(), OWN.public(), OWN),
        "CURVE server": lambda: CurveServer(KEYS.public(), KEYS, CookieKeys()),
    }[mechanism]()
    return Handshake(socket_type=socket_type, mechanism=made)


def go_on(one, data):
    """Lets a side take bytes, and answers its question, if it has one; returns what it sends."""
    sent = one.receive(data)
    return sent + one.answer() if one.question is not None else sent


@pytest.mark.parametrize(
    ("ours", "theirs", "early"),
    [
        ("NULL", "NULL", True),
        ("NULL that asks", "NULL", True),
        ("cached", "NULL", True),
        ("PLAIN server", "PLAIN client", False),
        ("PLAIN client", "PLAIN server", True),
        ("CURVE server", "CURVE client", False),
        ("CURVE client", "CURVE server", True),
    ],
)
@pytest.mark.parametrize("again", [False, True], ids=["first", "again"])  # the second one is from the cache
def test_no_peer_is_through_before_it_is_known_that_it_may_be(ours, theirs, early, again):
    us, peer = side(ours, SocketType.PULL), side(theirs, SocketType.PUSH)
    ahead = False  # it may be through, and we are not
    sent, received = us.start(), peer.start()
    while received or sent:
        answers = []
        for octet in received:
            answers.append(go_on(us, bytes([octet])))
            assert us.peer_may_send or not us.done
            ahead = ahead or (us.peer_may_send and not us.done)
        sent += b"".join(answers)
        received, sent = go_on(peer, sent) if sent else b"", b""
        assert us.peer_may_send or not peer.done
    assert us.done
    assert peer.done
    assert ahead is early
