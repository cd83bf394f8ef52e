"""A service with CURVE whose authorizer decides about each client's key: encrypted, and closed to strangers.

The authorizer is a coroutine, so that it may ask a database. `user_id` of a message names the key that sent it.

Prints:

    refused: the key is not authorized
    alice may read: True
    bob may read: False
"""

import asyncio

import omq.asyncio as omq


class Directory:
    """The known keys, their users, and the users that may read."""

    def __init__(self) -> None:
        self.users: dict[bytes, str] = {}
        self.readers: set[str] = set()

    async def authorize(self, key: bytes) -> bool:
        """Returns whether a client with this public key may connect."""
        await asyncio.sleep(0)  # in place of a query
        return key in self.users

    def may_read(self, message: omq.Message) -> bool:
        """Returns whether the sender of a message may read."""
        return self.users[(message.peer.user_id or "").encode()] in self.readers


async def serve(rep: omq.REP, directory: Directory) -> None:
    """Answers each request with the permission of its sender."""
    while True:
        message = await rep.recv_message()
        await rep.send(str(directory.may_read(message)).encode())


async def ask(endpoint: str, server_key: bytes, keys: tuple[bytes, bytes]) -> bytes:
    """Sends a request with a key pair."""
    public, secret = keys
    async with omq.REQ(connect=endpoint, security=omq.CurveClient(server_key, public, secret), linger=0) as req:
        await req.wait_connected(timeout=5)
        await req.send(b"may I read?")
        return await req.recv(timeout=5)


async def refusal(rep: omq.REP, stranger: asyncio.Task[bytes]) -> str:
    """Waits until the server refuses a client, and returns the reason."""
    async with rep.monitor() as monitor:
        async for event in monitor:
            if event.kind is omq.EventKind.HANDSHAKE_FAILED:
                break
    stranger.cancel()
    return "the key is not authorized" if "is not authorized" in event.reason else event.reason


async def main() -> None:
    """Connects a stranger, and then two users."""
    server_key, server_secret = omq.curve_keypair()
    directory = Directory()
    security = omq.CurveServer(server_secret, authorize=directory.authorize)
    async with omq.REP(bind="tcp://127.0.0.1:*", security=security) as rep:
        server = asyncio.create_task(serve(rep, directory))
        endpoint = rep.endpoints[0]
        stranger = asyncio.create_task(ask(endpoint, server_key, omq.curve_keypair()))
        print("refused:", await refusal(rep, stranger))
        for name in ("alice", "bob"):
            keys = omq.curve_keypair()
            directory.users[keys[0]] = name
            directory.readers = {"alice"}
            print(f"{name} may read:", (await ask(endpoint, server_key, keys)).decode())
        server.cancel()


if __name__ == "__main__":
    asyncio.run(main())
