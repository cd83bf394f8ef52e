"""Finds services by their beacons, and notices when one is gone.

Each service sends its name and endpoint to a group over UDP, several times a second (RADIO). The registry (DISH) calls
a service lost after some missing beacons. A multicast address, such as `udp://239.0.0.1:5670`, reaches all registries
of a network.

Prints:

    found camera
    found sonar
    lost camera
    sonar answers ping
"""

import asyncio
import time
from typing import Final

import omq.asyncio as omq

BEACON_INTERVAL_S: Final = 0.05
LOST_AFTER_S: Final = 0.5  # some beacons may be lost, or late on a busy machine
GROUP: Final = "services"


async def service(name: str, registry: str) -> None:
    """Answers requests, and sends beacons, until it is cancelled."""
    async with omq.REP(bind="tcp://127.0.0.1:*") as rep, omq.RADIO(connect=registry) as radio:

        async def answer() -> None:
            async for request in rep:
                await rep.send(name.encode() + b" answers " + request)

        answering = asyncio.create_task(answer())
        try:
            while True:
                await radio.send(f"{name} {rep.endpoints[0]}".encode(), group=GROUP)
                await asyncio.sleep(BEACON_INTERVAL_S)
        finally:
            answering.cancel()


async def watch(dish: omq.DISH, found: dict[str, str], changes: asyncio.Queue[str]) -> None:
    """Keeps the endpoints of the services that are alive, and reports changes."""
    seen: dict[str, float] = {}
    while True:
        try:
            for beacon in await dish.recv_many(timeout=BEACON_INTERVAL_S):
                assert isinstance(beacon, bytes)  # a message to a group has one part
                name, endpoint = beacon.decode().split()
                seen[name] = time.monotonic()
                if name not in found:
                    found[name] = endpoint
                    changes.put_nowait(f"found {name}")
        except TimeoutError:
            pass
        for name in [name for name in found if time.monotonic() - seen[name] > LOST_AFTER_S]:
            del found[name]
            changes.put_nowait(f"lost {name}")


async def main() -> None:
    """Starts two services, and stops one of them."""
    found: dict[str, str] = {}
    changes: asyncio.Queue[str] = asyncio.Queue()
    async with omq.DISH(bind="udp://127.0.0.1:*", join=GROUP) as dish, asyncio.timeout(20):
        watching = asyncio.create_task(watch(dish, found, changes))
        running = {}
        for name in ("camera", "sonar"):
            running[name] = asyncio.create_task(service(name, dish.endpoints[0]))
            print(await changes.get())
        running["camera"].cancel()
        print(await changes.get())
        async with omq.REQ(connect=found["sonar"]) as req:
            await req.send(b"ping")
            print((await req.recv()).decode())
        tasks = (watching, *running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main())
