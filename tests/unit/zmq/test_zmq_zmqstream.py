"""`ZMQStream` and the sockets of `omq.zmq.eventloop.future`, on tornado."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import omq.zmq as zmq

pytest.importorskip("tornado", reason="tornado is not installed")

from omq.zmq.eventloop import future, zmqstream

TIMEOUT_S = 20


def test_a_stream_passes_on_what_another_one_sends(context: zmq.Context[Any]) -> None:
    async def main() -> None:
        push, pull = (zmqstream.ZMQStream(context.socket(kind)) for kind in (zmq.PUSH, zmq.PULL))
        port = pull.bind_to_random_port("tcp://127.0.0.1")
        push.connect(f"tcp://127.0.0.1:{port}")
        received: list[Any] = []
        sent: list[Any] = []
        finished = asyncio.get_running_loop().create_future()

        def take(message: Any) -> None:
            received.append(message)
            if len(received) == 300:
                finished.set_result(None)

        pull.on_recv(take)
        push.on_send(lambda message, status: sent.append(message))
        for number in range(300):
            push.send_multipart([b"%d" % number, b""])
        await asyncio.wait_for(finished, TIMEOUT_S)
        assert received == sent == [[b"%d" % number, b""] for number in range(300)]
        assert not push.sending()
        assert pull.receiving()
        pull.stop_on_recv()
        push.close()
        pull.close()
        assert pull.closed()
        with pytest.raises(OSError, match="Stream is closed"):
            push.send(b"x")

    asyncio.run(main())


def test_futures_on_tornado(context: zmq.Context[Any]) -> None:
    async def main() -> None:
        made = future.Context()
        pull, push = made.socket(zmq.PULL), made.socket(zmq.PUSH)
        pull.bind("tcp://127.0.0.1:*")
        push.connect(pull.last_endpoint.decode())
        cancelled, waiting = pull.recv(), pull.recv()
        cancelled.cancel()
        await push.send(b"x")
        assert await asyncio.wait_for(waiting, TIMEOUT_S) == b"x"
        with pytest.raises(future.CancelledError):
            await cancelled
        made.destroy(linger=0)

    asyncio.run(main())
