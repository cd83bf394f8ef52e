"""One thread sends without pause, another one goes from server to server: nothing is lost, and nothing is left over."""

from __future__ import annotations

import contextlib
import threading
import time

import omq

SECONDS = 1.5
CALM = 1.0  # seconds without a message after which none comes any more


def test_connections_that_come_and_go_under_a_sender_lose_nothing_and_end() -> None:
    pulls = [omq.PULL(bind="tcp://127.0.0.1:*", recv_hwm=0) for _ in range(3)]
    push = omq.PUSH(send_hwm=100, connect=pulls[0].endpoints[0])
    stop = threading.Event()
    sent = 0

    def send() -> None:
        nonlocal sent
        while not stop.is_set():
            with contextlib.suppress(omq.SendTimeout):
                push.send(b"%d" % sent, timeout=0.5)
                sent += 1
            if sent % 20 == 0:
                time.sleep(0.0005)

    thread = threading.Thread(target=send)
    thread.start()
    end = time.monotonic() + SECONDS
    rounds = 0
    while time.monotonic() < end:
        rounds += 1
        endpoint = pulls[rounds % 3].endpoints[0]
        push.connect(endpoint)
        time.sleep(0.0005 * (rounds % 7) if rounds % 4 else 0)
        push.disconnect(endpoint)
    push.connect(pulls[0].endpoints[0])  # for what is sent last
    stop.set()
    thread.join()
    begun = time.monotonic()
    push.close(linger=20)
    assert time.monotonic() - begun < 15, f"something was left after {rounds} rounds"
    got: list[int] = []
    while ready := omq.wait(pulls, timeout=CALM):
        for pull in ready:
            got += map(int, pull.recv_many(timeout=0))
    for pull in pulls:
        pull.close()
    assert sorted(got) == list(range(sent))
