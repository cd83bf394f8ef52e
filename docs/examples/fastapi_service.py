"""An HTTP service with FastAPI in front of a ZeroMQ backend: one asyncio socket serves all requests.

Many HTTP requests wait at the same time for answers of a ROUTER; a number in each message finds the one that waits.
Needs `pip install fastapi uvicorn`. `uvicorn fastapi_service:app` serves http://127.0.0.1:8000/square/7; this program
serves at a free port, and makes two requests itself.

Prints:

    {"number":2,"square":4}
    {"number":3,"square":9}
"""

import asyncio
import itertools
import threading
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from fastapi import FastAPI

import omq.asyncio as omq


class Backend:
    """A client that sends requests and gives each answer to the call that waits for it."""

    def __init__(self, endpoint: str) -> None:
        self._socket = omq.DEALER(connect=endpoint)
        self._waiting: dict[bytes, asyncio.Future[bytes]] = {}
        self._numbers = itertools.count()

    async def call(self, request: bytes) -> bytes:
        """Returns the answer to a request, or raises TimeoutError."""
        number = b"%d" % next(self._numbers)
        self._waiting[number] = future = asyncio.get_running_loop().create_future()
        try:
            await self._socket.send_multipart([number, request])
            return await asyncio.wait_for(future, 5)
        finally:
            self._waiting.pop(number, None)

    async def receive(self) -> None:
        """Receives answers until it is cancelled."""
        async with self._socket:
            while True:
                number, answer = await self._socket.recv_multipart()
                if future := self._waiting.pop(number, None):
                    future.set_result(answer)


async def serve_backend(router: omq.ROUTER) -> None:
    """Squares numbers: in place of a server on another machine."""
    while True:
        client, number, request = await router.recv_multipart()
        await router.send_multipart([client, number, b"%d" % int(request) ** 2])


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Opens the sockets when the service starts, and closes them when it ends."""
    async with omq.ROUTER(bind="tcp://127.0.0.1:*") as router:
        app.state.backend = Backend(router.endpoints[0])
        tasks = [asyncio.create_task(serve_backend(router)), asyncio.create_task(app.state.backend.receive())]
        yield
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


app = FastAPI(lifespan=lifespan)


@app.get("/square/{number}")
async def square(number: int) -> dict[str, int]:
    """Returns the square of a number."""
    return {"number": number, "square": int(await app.state.backend.call(b"%d" % number))}


def main() -> None:
    """Serves in a thread, and makes some requests."""
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        thread.join(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    for number in (2, 3):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/square/{number}", timeout=10) as response:
            print(response.read().decode())
    server.should_exit = True
    thread.join()


if __name__ == "__main__":
    main()
