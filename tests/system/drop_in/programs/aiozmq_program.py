"""A server with aiozmq's calls, notifications, publications and streams, and its client; both print JSON."""

import asyncio
import json
import sys

import aiozmq
import aiozmq.rpc
import zmq

TIMEOUT_S = 60
ANY = "tcp://127.0.0.1:*"


class Calls(aiozmq.rpc.AttrHandler):
    """The methods of the server."""

    def __init__(self) -> None:
        self.seen = []
        self.change = asyncio.Event()

    @aiozmq.rpc.method
    def add(self, first: int, second: int) -> int:
        return first + second

    @aiozmq.rpc.method
    async def slow(self, text: str) -> str:
        await asyncio.sleep(0.2)
        return text.upper()

    @aiozmq.rpc.method
    def fail(self):
        raise ValueError("reason", 7)

    @aiozmq.rpc.method
    def note(self, text):
        self.seen.append(text)
        self.change.set()

    @aiozmq.rpc.method
    async def notes(self, count):
        while len(set(self.seen)) < count:
            self.change.clear()
            await self.change.wait()
        return sorted(set(self.seen))


async def serve() -> None:
    calls = Calls()
    servers = {
        "calls": await aiozmq.rpc.serve_rpc(calls, bind=ANY),
        "notifications": await aiozmq.rpc.serve_pipeline(calls, bind=ANY),
        "publications": await aiozmq.rpc.serve_pubsub(calls, subscribe="topic", bind=ANY),
    }
    places = {name: next(iter(one.transport.bindings())) for name, one in servers.items()}
    router = await aiozmq.create_zmq_stream(zmq.ROUTER, bind=ANY)
    places["stream"] = next(iter(router.transport.bindings()))
    print(json.dumps(places), flush=True)
    try:
        while True:  # the stream returns each message, until an empty one
            message = await router.read()
            router.write(message)
            await router.drain()
            if message[-1] == b"":
                break
    finally:
        for one in servers.values():
            one.close()
            await one.wait_closed()
        router.close()
    print("closed", flush=True)


async def ask(places: dict) -> dict:
    found = {}
    calls = await aiozmq.rpc.connect_rpc(connect=places["calls"], timeout=TIMEOUT_S)
    found["call"] = await calls.call.add(1, 2)
    found["calls"] = await asyncio.gather(*(calls.call.add(number, 1) for number in range(200)))
    found["slow calls"] = await asyncio.gather(calls.call.slow("one"), calls.call.add(1, 1), calls.call.slow("two"))
    for name, call in {"error": calls.call.fail, "missing": calls.call.missing}.items():
        try:
            await call()
        except Exception as error:
            found[name] = type(error).__name__
    try:
        await calls.with_timeout(0.05).call.slow("late")
    except TimeoutError:
        found["timeout"] = True
    notifications = await aiozmq.rpc.connect_pipeline(connect=places["notifications"])
    await notifications.notify.note("notified")
    publications = await aiozmq.rpc.connect_pubsub(connect=places["publications"])
    events = asyncio.create_task(publish(publications))
    found["notes"] = await calls.call.notes(2)
    events.cancel()
    stream = await aiozmq.create_zmq_stream(zmq.DEALER, connect=places["stream"])
    texts = [b"%d" % number * (number % 50 + 1) for number in range(2000)]
    for text in texts:
        stream.write([b"part", text])
    await stream.drain()
    found["stream"] = [await stream.read() for _ in texts] == [[b"part", text] for text in texts]
    stream.write([b"x" * 5_000_000])
    found["large"] = len((await stream.read())[0])
    stream.write([b""])
    found["last"] = [part.decode() for part in await stream.read()]
    stream.close()
    for one in (calls, notifications, publications):
        one.close()
        await one.wait_closed()
    return found


async def publish(publications) -> None:
    """Publishes until the server, which subscribes at some time, has noted it."""
    while True:
        await publications.publish("topic").note("published")
        await publications.publish("other topic").note("for others")
        await asyncio.sleep(0.05)


def main(places: dict) -> None:
    if not places:
        asyncio.run(asyncio.wait_for(serve(), TIMEOUT_S))
        return
    found = asyncio.run(asyncio.wait_for(ask(places), TIMEOUT_S))
    with open("/proc/self/maps") as file:
        found["maps"] = file.read()
    print(json.dumps(found))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
