"""A quorum queue of RabbitMQ through pika: its callbacks, since its blocking channel waits for each confirmation."""

from __future__ import annotations

from typing import Any

import pika

from bench.broker.drivers import TOPIC, ClientJob


class Client:
    """Publishes and consumes; a quorum queue has no replay."""

    def __init__(self, job: ClientJob) -> None:
        self._depth, self._body = job.depth, job.body()
        self._properties = pika.BasicProperties(delivery_mode=2)
        host, port = job.host
        self._channel: Any = None
        self._done = False
        self._tag = 0  # of the last published message
        self._low, self._above = 1, set[int]()
        self._count = self._taken = 0
        parameters = pika.ConnectionParameters(host, port, heartbeat=0)
        opened = {"on_open_callback": lambda it: it.channel(on_open_callback=self._opened)}
        self._connection: Any = pika.SelectConnection(parameters, **opened)
        self._run_loop()

    def _run_loop(self) -> None:
        """Runs the connection's loop until a callback ends it."""
        self._done = False
        while not self._done:
            self._connection.ioloop.start()

    def _end_loop(self, *_: object) -> None:
        self._done = True
        self._connection.ioloop.stop()

    def _opened(self, channel: Any) -> None:
        self._channel = channel
        self._end_loop()

    def create(self) -> None:
        self._channel.queue_declare(TOPIC, durable=True, arguments={"x-queue-type": "quorum"}, callback=self._end_loop)
        self._run_loop()
        self._channel.confirm_delivery(self._confirmed, callback=self._end_loop)
        self._run_loop()

    def publish(self, count: int) -> None:
        self._count = self._tag + count
        self._fill()
        self._run_loop()

    def trip(self) -> None:
        self.publish(1)

    def _fill(self) -> None:
        while self._tag < self._count and self._tag - (self._low + len(self._above) - 1) < self._depth:
            self._channel.basic_publish("", TOPIC, self._body, self._properties)
            self._tag += 1

    def _confirmed(self, frame: Any) -> None:
        tag = frame.method.delivery_tag
        if frame.method.multiple:
            self._above = {above for above in self._above if above > tag}
            self._low = max(self._low, tag + 1)
        else:
            self._above.add(tag)
        while self._low in self._above:
            self._above.remove(self._low)
            self._low += 1
        if self._low > self._count:
            self._end_loop()
        else:
            self._fill()

    def arm(self) -> None:
        self._channel.basic_qos(prefetch_count=self._depth, callback=self._end_loop)
        self._run_loop()
        self._early: list[int] = []
        self._channel.basic_consume(TOPIC, self._delivered, callback=self._end_loop)
        self._run_loop()

    def consume(self, count: int) -> None:
        self._count = count
        self._taken = 0
        for tag in self._early:
            self._acknowledge(tag)
        self._early.clear()
        if self._taken < count:
            self._run_loop()
        self._count = 0
        self._channel.queue_declare(TOPIC, passive=True, callback=self._end_loop)
        self._run_loop()

    def _delivered(self, channel: Any, delivery: Any, properties: Any, body: bytes) -> None:
        if self._taken == self._count:
            self._early.append(delivery.delivery_tag)
        else:
            self._acknowledge(delivery.delivery_tag)

    def _acknowledge(self, tag: int) -> None:
        self._taken += 1
        if self._taken == self._count or self._taken % (self._depth // 10 or 1) == 0:
            self._channel.basic_ack(tag, multiple=True)
        if self._taken == self._count:
            self._end_loop()
