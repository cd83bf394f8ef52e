"""Carries jobs from one site to another over a link that fails: pzq stores them, and a forwarder moves them.

Each site has a device, whose queue is on its disk. The forwarder acknowledges a message at its site when the other
site has stored it. The header `DEDUP` has a sequence per message, so that a repetition is stored once. Needs `pip
install 'omq-zmtp[broker]'`.

Prints:

    stored at the ship: 5 samples
    the link fails after 2 samples
    arrived on land: sample 1, sample 2, sample 3, sample 4, sample 5
"""

import tempfile
import threading
from pathlib import Path

import omq.pzq


class LinkError(Exception):
    """The link between the sites has failed."""


def forward(consumer: omq.pzq.Consumer, producer: omq.pzq.Producer, *, fails_after: int | None = None) -> None:
    """Moves messages from one device to another, until the consumer is closed.

    Raises:
        LinkError: The link has failed; the last message was stored at the other site, and is not acknowledged.
    """
    for count, delivery in enumerate(consumer, 1):
        producer.send(delivery.body, headers=[b"DEDUP:ship:" + delivery.body.split()[1]])
        if count == fails_after:
            raise LinkError(f"the link fails after {count} samples")
        delivery.ack()


def main() -> None:
    """Produces at the ship, and consumes on land."""
    with (
        tempfile.TemporaryDirectory() as folder,
        omq.pzq.Device(Path(folder, "ship")) as ship,
        omq.pzq.Device(Path(folder, "land")) as land,
    ):
        source, target = ship.endpoints["send"], land.endpoints["receive"]
        with omq.pzq.Producer(ship.endpoints["receive"], timeout=20) as producer:
            count = producer.send_many([b"sample %d" % number for number in range(1, 6)])
            print(f"stored at the ship: {count} samples")
        with omq.pzq.Consumer(source, prefetch=1) as consumer, omq.pzq.Producer(target, timeout=20) as producer:
            try:
                forward(consumer, producer, fails_after=2)
            except LinkError as error:
                print(error)
        with omq.pzq.Consumer(source, prefetch=1) as consumer, omq.pzq.Producer(target, timeout=20) as producer:
            forwarder = threading.Thread(target=forward, args=[consumer, producer])
            forwarder.start()
            with omq.pzq.Consumer(land.endpoints["send"]) as arrivals:
                arrived = []
                for _ in range(count):
                    delivery = arrivals.recv(timeout=20)
                    arrived.append(delivery.body.decode())
                    delivery.ack()
            consumer.close()
            forwarder.join()
        print("arrived on land:", ", ".join(sorted(arrived)))


if __name__ == "__main__":
    main()
