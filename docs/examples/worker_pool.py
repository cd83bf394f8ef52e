"""Gives each task to a worker process that is idle, and again if that worker dies.

Each worker asks for a task when it has finished the last one, so that a long task delays no other. The dispatcher's
ROUTER reports a worker whose connection has ended (`router_notify`).

Prints:

    a worker died with task 3
    0 1 4 9 16 25 36 49
"""

import multiprocessing
import os
from collections import deque

import omq


def work(endpoint: str) -> None:
    """Squares numbers until it is stopped."""
    with omq.DEALER(connect=endpoint) as dealer:
        dealer.send(b"ready")
        while task := dealer.recv(timeout=30):
            number, kind = task.split()
            if kind == b"deadly":
                os._exit(1)
            dealer.send(b"%d %d" % (int(number), int(number) ** 2))


def dispatch(router: omq.ROUTER, tasks: deque[bytes], count: int, alive: int) -> dict[int, int]:
    """Gives tasks to idle workers, and returns all results when the workers have ended."""
    results: dict[int, int] = {}
    idle: list[bytes] = []
    busy: dict[bytes, bytes] = {}
    while alive:
        while idle and (tasks or len(results) == count):
            worker = idle.pop()
            if tasks:
                busy[worker] = tasks.popleft()
            router.send_multipart([worker, busy.get(worker, b"")])  # an empty message stops it
        worker, message = router.recv_multipart(timeout=30)
        task = busy.pop(worker, b"")
        if message:
            idle.append(worker)
            if task:
                number, result = message.split()
                results[int(number)] = int(result)
        else:  # its connection has ended
            alive -= 1
            if task:
                number, _ = task.split()
                print("a worker died with task", number.decode())
                tasks.append(number + b" safe")
    return results


def main() -> None:
    """Squares eight numbers with three workers, one of which dies."""
    tasks = deque(b"%d %s" % (number, b"deadly" if number == 3 else b"safe") for number in range(8))
    start = multiprocessing.get_context("spawn").Process
    with omq.ROUTER(bind="tcp://127.0.0.1:*", router_notify="disconnect") as router:
        workers = [start(target=work, args=router.endpoints) for _ in range(3)]
        for worker in workers:
            worker.start()
        results = dispatch(router, tasks, len(tasks), len(workers))
        print(*(results[number] for number in sorted(results)))
        for worker in workers:
            worker.join()


if __name__ == "__main__":
    main()
