"""More peers of libzmq at once than may be in their handshake: each is served, and none loses its first message."""

from __future__ import annotations

import asyncio

import pytest
import zmq

import omq.asyncio as omq
from tests.interop.conftest import Fresh
from tests.interop.libzmq import Libzmq
from tests.interop.run_coroutine import on_uvloop

CROWD = 200


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", ["NULL", "CURVE"])
@on_uvloop
async def test_each_of_a_crowd_is_answered(libzmq: Libzmq, fresh: Fresh, mechanism: str) -> None:
    public, secret = omq.curve_keypair()
    mine = {"security": omq.CurveServer(secret, authorize=None)} if mechanism == "CURVE" else {}
    async with omq.ROUTER(bind=fresh("tcp"), max_handshakes=3, linger=0.0, **mine) as router:

        async def echo() -> None:
            while True:
                await router.send_multipart(await router.recv_multipart())

        async def ask(number: int) -> bytes:
            dealer = libzmq.open("DEALER")
            if mechanism == "CURVE":
                dealer.curve_serverkey = public
                dealer.curve_publickey, dealer.curve_secretkey = zmq.curve_keypair()
            dealer.connect(router.endpoints[0])
            await dealer.send(b"%d" % number)
            return bytes(await dealer.recv())

        echoing = asyncio.ensure_future(echo())
        async with asyncio.timeout(20):
            answers = await asyncio.gather(*(ask(number) for number in range(CROWD)))
        echoing.cancel()
        await asyncio.wait([echoing])
        assert answers == [b"%d" % number for number in range(CROWD)]
