"""Gives each new subscriber the newest value of its topic at once, and then all updates.

The cache subscribes to the feed and publishes it again. `xpub_manual_last_value` reports each subscription, and sends
the next message only to its subscriber.

Prints:

    early subscriber: AAPL 189.95
    early subscriber: AAPL 189.97
    late subscriber: AAPL 189.97
    late subscriber: AAPL 190.02
"""

import threading

import omq


def cache(sub: omq.SUB, xpub: omq.XPUB) -> None:
    """Forwards the feed and keeps its newest values, until the context ends."""
    newest: dict[bytes, bytes] = {}
    try:
        while True:
            ready = omq.wait([sub, xpub])
            if sub in ready:
                topic, value = sub.recv_multipart()
                newest[topic] = value
                xpub.send_multipart([topic, value])
            if xpub in ready:
                event = xpub.recv()
                subscribed, topic = event[:1] == b"\x01", event[1:]
                if not subscribed:
                    xpub.unsubscribe(topic)
                    continue
                xpub.subscribe(topic)
                if topic in newest:
                    xpub.send_multipart([topic, newest[topic]])  # to this subscriber only
    except omq.ClosedError:
        pass


def show(name: str, sub: omq.SUB) -> None:
    """Prints the next value of a subscriber."""
    topic, value = sub.recv_multipart(timeout=5)
    print(f"{name} subscriber: {topic.decode()} {value.decode()}")


def main() -> None:
    """Publishes three prices; a subscriber joins after the second one."""
    with omq.Context() as context:
        sub = omq.SUB(context, bind="tcp://127.0.0.1:*", subscribe=b"")
        xpub = omq.XPUB(context, bind="tcp://127.0.0.1:*", xpub_manual_last_value=True)
        thread = threading.Thread(target=cache, args=[sub, xpub])
        thread.start()
        prices = xpub.endpoints[0]
        with omq.PUB(connect=sub.endpoints[0]) as feed, omq.SUB(connect=prices, subscribe=b"AAPL") as early:
            feed.wait_subscribed(timeout=5)
            xpub.wait_subscribed(b"AAPL", timeout=5)
            feed.send_multipart([b"AAPL", b"189.95"])
            show("early", early)
            feed.send_multipart([b"AAPL", b"189.97"])
            show("early", early)
            with omq.SUB(connect=prices, subscribe=b"AAPL") as late:
                show("late", late)
                feed.send_multipart([b"AAPL", b"190.02"])
                show("late", late)
    thread.join()


if __name__ == "__main__":
    main()
