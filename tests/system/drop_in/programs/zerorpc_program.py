"""A server of zerorpc, and a client that prints what it has seen, as JSON."""

import json
import os
import signal
import sys

import gevent
import zerorpc

HEARTBEAT_S = 1.5  # not a multiple of the second after which zerorpc looks for itself


class Service:
    """The methods of the server."""

    def hello(self, name):
        return f"hello {name}"

    def add(self, *numbers):
        return sum(numbers)

    def fail(self, reason):
        raise KeyError(reason)

    def sleep(self, seconds):
        gevent.sleep(seconds)
        return seconds

    def pid(self):
        return os.getpid()

    def maps(self):
        with open("/proc/self/maps") as file:
            return file.read()

    @zerorpc.stream
    def count(self, limit):
        yield from range(limit)


def serve() -> None:
    server = zerorpc.Server(Service(), heartbeat=HEARTBEAT_S)
    server.bind("tcp://127.0.0.1:*")
    print(server._events._socket.last_endpoint.decode(), flush=True)
    server.run()


def main(endpoint: str) -> None:
    client = zerorpc.Client(endpoint, heartbeat=HEARTBEAT_S, timeout=60)
    found = {"hello": client.hello("there"), "add": client.add(1, 2, 3)}
    found["maps"] = {"client": Service().maps(), "server": client.maps()}
    found["many"] = [client.add(number, 1) for number in range(500)]
    started = [gevent.spawn(client.add, number, 2) for number in range(100)]
    found["at once"] = [one.get() for one in started]
    sleeps = [gevent.spawn(client.sleep, 0.5) for _ in range(20)]
    with gevent.Timeout(8):
        found["sleeps"] = [one.get() for one in sleeps]
    found["longer than a heartbeat"] = client.sleep(3)
    try:
        client.fail("reason")
    except zerorpc.RemoteError as error:
        found["error"] = [error.name, error.msg]
    try:
        client.sleep(30, timeout=0.5)
    except zerorpc.TimeoutExpired:
        found["timeout"] = True
    found["stream"] = list(client.count(2000)) == list(range(2000))
    found["large"] = len(client.hello("x" * 3_000_000))
    gevent.spawn_later(0.5, os.kill, client.pid(), signal.SIGKILL)
    try:
        client.sleep(600, timeout=60)
    except zerorpc.LostRemote:
        found["lost"] = True
    client.close()
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1]) if len(sys.argv) > 1 else serve()
