"""The metadata of sockets, and names that a ROUTER gives by itself."""

import pytest

import omq.asyncio as omq


@pytest.mark.parametrize("scheme", ["tcp://127.0.0.1:*", "inproc://metadata"])
async def test_a_peer_finds_what_a_socket_announces_about_itself(scheme: str) -> None:
    async with (
        omq.PULL(bind=scheme) as pull,
        omq.PUSH(connect=pull.endpoints[0], metadata={b"X-Shoe": b"42"}) as push,
    ):
        await push.send(b"a")
        assert (await pull.recv_message(timeout=5)).peer.properties[b"x-shoe"] == b"42"


async def test_peers_of_one_identity_are_both_served_by_a_router_that_names_them_itself() -> None:
    async with omq.ROUTER(bind="tcp://127.0.0.1:*", router_rename=True) as router:
        one = omq.DEALER(connect=router.endpoints[0], identity=b"same")
        other = omq.DEALER(connect=router.endpoints[0], identity=b"same")
        async with one, other:
            await one.send(b"1")
            await other.send(b"2")
            names = {}
            for _ in range(2):
                name, body = await router.recv_multipart(timeout=5)
                names[body] = name
            assert names[b"1"] != names[b"2"]
            assert b"same" not in names.values()
            await router.send_multipart([names[b"2"], b"back"])
            assert await other.recv(timeout=5) == b"back"
