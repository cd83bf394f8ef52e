"""A program that sends and receives with zmq-anyio, on asyncio or on trio; it prints what it has seen, as JSON."""

import json
import sys

import anyio
import zmq
import zmq_anyio

TIMEOUT_S = 60


async def main() -> dict:
    found = {}
    context = zmq.Context()
    with anyio.fail_after(TIMEOUT_S):
        dealer, router = (zmq_anyio.Socket(context.socket(kind)) for kind in (zmq.DEALER, zmq.ROUTER))
        dealer.identity = b"dealer"
        dealer.connect(bind(router))
        async with router, dealer:
            await dealer.asend_multipart([b"one", b"two"])
            found["parts"] = [part.decode() for part in await router.arecv_multipart()]
            waiting = dealer.arecv_multipart()  # a receive that waits while the peer sends
            await anyio.sleep(0.1)
            await router.asend_multipart([b"dealer", b"back"])
            found["back"] = [part.decode() for part in await waiting]
            found["echoes"] = await echo(dealer, router)
            await dealer.asend_json({"key": [1, 2]})
            found["identity"] = (await router.arecv()).decode()
            found["json"] = await router.arecv_json()
            await router.asend(b"dealer", zmq.SNDMORE)
            await router.asend_string("text")
            found["string"] = await dealer.arecv_string()
            found["poll of nothing"] = await dealer.apoll(50)
            await router.asend_multipart([b"dealer", b"x" * 5_000_000])
            found["poll"] = await dealer.apoll(30_000)
            found["large"] = len(await dealer.arecv(copy=False))
            dealer.rcvtimeo = 100
            try:
                await dealer.arecv()
            except Exception as error:
                found["timeout"] = type(error.__cause__ or error).__name__
        found["pushed"] = await push(context)
    context.term()
    return found


def bind(socket: zmq.Socket) -> str:
    socket.bind("tcp://127.0.0.1:*")
    return socket.last_endpoint.decode()


async def echo(dealer: zmq_anyio.Socket, router: zmq_anyio.Socket) -> int:
    """Sends requests while a task answers them; returns how many answers were right."""
    count = 1000

    async def answer() -> None:
        for _ in range(count):
            await router.asend_multipart(await router.arecv_multipart())

    good = 0
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(answer)
        for number in range(count):
            await dealer.asend(b"%d" % number)
            good += await dealer.arecv() == b"%d" % number
    return good


async def push(context: zmq.Context) -> bool:
    """Sends more than the buffers hold to a slow receiver; returns whether all arrived in order."""
    count = 5000
    push, pull = (zmq_anyio.Socket(context, kind) for kind in (zmq.PUSH, zmq.PULL))
    push.sndhwm = pull.rcvhwm = 10
    push.connect(bind(pull))

    async def send() -> None:
        for number in range(count):
            await push.asend(b"%d" % number + b"x" * 100)

    async with push, pull, anyio.create_task_group() as tasks:
        tasks.start_soon(send)
        await anyio.sleep(0.5)
        seen = [await pull.arecv() for _ in range(count)]
    return seen == [b"%d" % number + b"x" * 100 for number in range(count)]


if __name__ == "__main__":
    results = anyio.run(main, backend=sys.argv[1])
    with open("/proc/self/maps") as file:
        print(json.dumps({**results, "maps": file.read()}))
