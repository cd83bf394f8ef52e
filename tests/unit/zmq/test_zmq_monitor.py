"""Monitors of `omq.zmq`: the events of a socket as messages."""

from __future__ import annotations

from typing import Any

import pytest

import omq.zmq as zmq
from omq.zmq.utils.monitor import recv_monitor_message


def test_the_events_of_a_connection(context: zmq.Context[Any]) -> None:
    pull, push = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    pull.bind("tcp://127.0.0.1:*")
    endpoint = pull.last_endpoint
    monitor = push.get_monitor_socket(zmq.EVENT_CONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_MONITOR_STOPPED)
    assert push.get_monitor_socket() is monitor
    monitor.rcvtimeo = 10_000
    push.connect(endpoint.decode())
    events = [recv_monitor_message(monitor) for _ in range(2)]
    assert [event["event"] for event in events] == [zmq.EVENT_CONNECTED, zmq.EVENT_HANDSHAKE_SUCCEEDED]
    assert {event["endpoint"] for event in events} == {endpoint}
    push.disable_monitor()
    assert recv_monitor_message(monitor)["event"] == zmq.EVENT_MONITOR_STOPPED


def test_other_endpoints_are_refused(context: zmq.Context[Any]) -> None:
    push = context.socket(zmq.PUSH)
    for endpoint, number in (("tcp://127.0.0.1:*", zmq.EPROTONOSUPPORT), ("nonsense", zmq.EINVAL)):
        with pytest.raises(zmq.ZMQError) as caught:
            push.monitor(endpoint)
        assert caught.value.errno == number
