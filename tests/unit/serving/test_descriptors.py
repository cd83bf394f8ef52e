"""The numbers of connections and handshakes for which the process has descriptors."""

from __future__ import annotations

import errno
import logging
import resource

import pytest

from omq.serving.descriptors import connection_limit, is_shortage, room_for_connections, room_for_handshakes

LOG = logging.getLogger("omq.test")


@pytest.mark.parametrize(
    ("limit", "connections", "handshakes"),
    [
        (10, 1, 16),
        (200, 136, 16),
        (1024, 896, 32),
        (1 << 20, (1 << 20) - 2048, 512),
        (resource.RLIM_INFINITY, 1 << 20, 512),
    ],
)
def test_a_reserve_is_left(limit: int, connections: int, handshakes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    assert room_for_connections() == connections
    assert room_for_handshakes(1) == handshakes
    assert room_for_handshakes(2) == handshakes // 2


def test_endpoints_share_the_descriptors(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 1024))
    assert connection_limit(None, 1, LOG) == 896
    assert connection_limit(None, 3, LOG) == 298
    assert connection_limit(448, 2, LOG) == 448
    assert not caplog.records
    assert connection_limit(449, 2, LOG) == 448
    assert caplog.messages == ["max_connections=449: the process has descriptors for 448; raise its limit (ulimit -n)"]


def test_a_shortage_is_recognized() -> None:
    assert is_shortage(OSError(errno.EMFILE, ""))
    assert is_shortage(OSError(errno.ENFILE, ""))
    assert not is_shortage(OSError(errno.ENOMEM, ""))
    assert not is_shortage(ValueError())
    assert not is_shortage(None)
