"""A feed with a snapshot: a client that joins late gets the current state, and then each update exactly once.

The client subscribes first, asks for a snapshot, and skips the updates that the snapshot has. Updates are numbered, so
that a client notices a gap and asks for a snapshot again.

Prints:

    snapshot 3: AAPL=189.97 MSFT=402.10
    update 4: MSFT=402.25
    update 5: NVDA=120.40
    gap before update 8: AAPL=190.10 MSFT=402.25 NVDA=120.55
"""

import asyncio
import json

import omq.asyncio as omq


class Feed:
    """The publisher of prices: updates over PUB, snapshots over ROUTER."""

    def __init__(self) -> None:
        self.updates = omq.PUB(bind="tcp://127.0.0.1:*")
        self.snapshots = omq.ROUTER(bind="tcp://127.0.0.1:*")
        self._sequence = 0
        self._prices: dict[str, str] = {}

    async def publish(self, symbol: str, price: str, *, lost: bool = False) -> None:
        """Publishes an update; a lost one reaches no client, as with a full queue."""
        self._sequence += 1
        self._prices[symbol] = price
        if not lost:
            await self.updates.send(json.dumps([self._sequence, symbol, price]).encode())

    async def serve(self) -> None:
        """Answers requests for a snapshot."""
        while True:
            *envelope, _ = await self.snapshots.recv_multipart()
            await self.snapshots.send_multipart([*envelope, json.dumps([self._sequence, self._prices]).encode()])


async def snapshot(endpoint: str) -> tuple[int, dict[str, str]]:
    """Returns the number of the last update, and all prices."""
    async with omq.REQ(connect=endpoint) as req:
        await req.send(b"snapshot")
        sequence, prices = json.loads(await req.recv(timeout=5))
        return sequence, prices


def shown(prices: dict[str, str]) -> str:
    """Returns the prices as a line."""
    return " ".join(f"{symbol}={price}" for symbol, price in sorted(prices.items()))


async def main() -> None:
    """Follows a feed from its third update on."""
    feed = Feed()
    server = asyncio.create_task(feed.serve())
    for symbol, price in [("AAPL", "189.95"), ("MSFT", "402.10"), ("AAPL", "189.97")]:
        await feed.publish(symbol, price)
    async with feed.updates, feed.snapshots, omq.SUB(connect=feed.updates.endpoints[0], subscribe=b"") as sub:
        await feed.updates.wait_subscribed(timeout=5)
        sequence, prices = await snapshot(feed.snapshots.endpoints[0])
        print(f"snapshot {sequence}: {shown(prices)}")
        for number, (symbol, price) in enumerate(
            [("MSFT", "402.25"), ("NVDA", "120.40"), ("AAPL", "190.05"), ("AAPL", "190.10"), ("NVDA", "120.55")], 4
        ):
            await feed.publish(symbol, price, lost=number in (6, 7))
        while sequence < 8:
            number, symbol, price = json.loads(await sub.recv(timeout=5))
            if number > sequence + 1:
                sequence, prices = await snapshot(feed.snapshots.endpoints[0])
                print(f"gap before update {number}: {shown(prices)}")
            elif number == sequence + 1:
                sequence, prices[symbol] = number, price
                print(f"update {number}: {symbol}={price}")
        server.cancel()


if __name__ == "__main__":
    asyncio.run(main())
