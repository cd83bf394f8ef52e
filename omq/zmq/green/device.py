"""The loop between two sockets, in a greenlet."""

from __future__ import annotations

from typing import Any, NoReturn

from omq.zmq.constants import PollEvent
from omq.zmq.green.poll import _Poller


def device(device_type: int, isocket: Any, osocket: Any) -> NoReturn:
    """Passes messages between two sockets for ever.

    Args:
        device_type: Ignored.
        isocket: One socket.
        osocket: The other one; -1 for the same one.
    """
    osocket = isocket if osocket == -1 else osocket
    poller = _Poller()
    poller.register(isocket, PollEvent.POLLIN)
    poller.register(osocket, PollEvent.POLLIN)
    while True:
        ready = dict(poller.poll())
        if isocket in ready:
            osocket.send_multipart(isocket.recv_multipart())
        if osocket is not isocket and osocket in ready:
            isocket.send_multipart(osocket.recv_multipart())
