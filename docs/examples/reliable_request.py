"""Asks a server whose answers get lost: requests have a timeout, are repeated, and are executed once.

`req_relaxed` allows a request after one without an answer, and `req_correlate` drops the answers to earlier requests.
The server keeps its answers by the id in the request, so that a repetition is not a second booking.

Prints:

    no answer, attempt 1
    no answer, attempt 2
    order-1: seat 1
    order-2: seat 2
    2 seats booked
"""

import threading
from typing import Final

import omq

TIMEOUT_S: Final = 1.0
MAX_ATTEMPTS: Final = 5


def ask(req: omq.REQ, request: bytes) -> bytes:
    """Sends a request until it is answered.

    Raises:
        ReceiveTimeout: There is no answer to any attempt.
    """
    for attempt in range(1, MAX_ATTEMPTS):
        req.send(request)
        try:
            return req.recv(timeout=TIMEOUT_S)
        except omq.ReceiveTimeout:
            print("no answer, attempt", attempt)
    req.send(request)
    return req.recv(timeout=TIMEOUT_S)


def serve(router: omq.ROUTER, bookings: dict[bytes, bytes], losses: int) -> None:
    """Books seats until the socket closes; loses some requests, or the answers to them."""
    while True:
        try:
            *envelope, order = router.recv_multipart()
        except omq.ClosedError:
            return
        if losses == 2:
            losses -= 1  # the request is lost
            continue
        seat = bookings.setdefault(order, b"seat %d" % (len(bookings) + 1))
        if losses == 1:
            losses -= 1  # the answer is lost
            continue
        router.send_multipart([*envelope, seat])


def main() -> None:
    """Books two seats."""
    bookings: dict[bytes, bytes] = {}
    with omq.ROUTER(bind="tcp://127.0.0.1:*") as router:
        server = threading.Thread(target=serve, args=[router, bookings, 2])
        server.start()
        with omq.REQ(connect=router.endpoints[0], req_relaxed=True, req_correlate=True) as req:
            for order in (b"order-1", b"order-2"):
                print(order.decode(), ask(req, order).decode(), sep=": ")
    server.join()
    print(len(bookings), "seats booked")


if __name__ == "__main__":
    main()
