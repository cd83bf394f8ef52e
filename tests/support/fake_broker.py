"""A broker in a few lines, for a client's state without I/O: messages go from queue to queue; connections are cut."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass, field

from omq._core import blocks
from omq.broker import protocol
from omq.broker.protocol import u64

#: What a follower executes.
_OF_FOLLOWERS = {protocol.HELLO, protocol.BYE, protocol.FLUSH, protocol.CANCEL, protocol.CREDIT}
_NOT_ANSWERED = {protocol.POSITION, protocol.ACK, protocol.NACK}


@dataclass
class Topic:
    """A topic, broadcast and round-robin in one."""

    bodies: list[bytes] = field(default_factory=list)
    producers: dict[tuple[bytes, int], int] = field(default_factory=dict)
    floors: dict[bytes, int] = field(default_factory=dict)
    names: dict[str, int] = field(default_factory=dict)
    acknowledged: set[int] = field(default_factory=set)
    durable: set[int] = field(default_factory=set)
    handed: dict[int, TopicConsumer] = field(default_factory=dict)
    deliveries: dict[int, int] = field(default_factory=dict)


@dataclass
class Reading:
    """A subscription."""

    topic: Topic
    position: int
    credit: int
    name: str | None


@dataclass(eq=False)
class TopicConsumer:
    """A consumer."""

    topic: Topic
    credit: int


class ScriptedBroker:
    """Follows the page of the protocol, one message at a time.

    Attributes:
        up: What the client has sent and the broker has not looked at.
        down: What the broker has sent and the client has not looked at.
        topics: By name.
        leads: Whether it is the leader of a cluster of one, or a follower.
    """

    def __init__(self) -> None:
        self.up: deque[list[bytes]] = deque()
        self.down: deque[list[bytes]] = deque()
        self.topics: dict[str, Topic] = {}
        self.tags: dict[bytes, Reading | TopicConsumer] = {}
        self.greeted = False
        self.largest = 3  # records of a block
        self.leads = True

    def cut(self, killed: bool = False) -> None:
        """The connection is over, with what was on its way; a broker that is killed has what is durable."""
        self.up.clear()
        self.down.clear()
        self._end()
        if killed:
            for topic in self.topics.values():
                topic.acknowledged = set(topic.durable)

    def step_down(self) -> None:
        """Becomes a follower: only plain subscriptions continue, and the next leader has what is durable."""
        for tag, held in list(self.tags.items()):
            if isinstance(held, TopicConsumer) or held.name is not None:
                self.send(protocol.ERROR, tag, b"not-leader", b"a follower")
                del self.tags[tag]
        self.leads = False
        for topic in self.topics.values():
            topic.handed.clear()
            topic.acknowledged = set(topic.durable)

    def _end(self) -> None:
        for held in self.tags.values():
            if isinstance(held, TopicConsumer):
                held.topic.handed = {id: share for id, share in held.topic.handed.items() if share is not held}
        self.tags.clear()
        self.greeted = False

    def step(self) -> None:
        """Looks at one message."""
        command, tag, *parts = self.up.popleft()
        if not self.leads and not self._may_follow(command, parts):
            if command not in _NOT_ANSWERED:
                self.send(protocol.ERROR, tag, b"not-leader", b"a follower")
            return
        try:
            getattr(self, f"_{command.decode().lower()}")(tag, *parts)
        except LookupError as error:
            self.tags.pop(tag, None)
            self.send(protocol.ERROR, tag, b"topic", str(error).encode())

    def _may_follow(self, command: bytes, parts: list[bytes]) -> bool:
        if command == protocol.SUBSCRIBE:
            return json.loads(parts[1])["name"] is None
        return command in _OF_FOLLOWERS

    def send(self, *parts: bytes) -> None:
        """Sends a message."""
        self.down.append(list(parts))

    def pump(self) -> bool:
        """Delivers a block, if one may be; gives whether it did."""
        for tag, held in self.tags.items():
            if held.credit <= 0:
                continue
            if isinstance(held, Reading):
                chosen = list(range(held.position + 1, len(held.topic.bodies) + 1))[: self.largest]
                counts = b""
            else:
                chosen = self._free(held)
                counts = b"".join(protocol.u32(held.topic.deliveries[id]) for id in chosen)
            if not chosen:
                continue
            records = blocks.encode([held.topic.bodies[id - 1] for id in chosen])
            header = blocks.header(chosen[0], len(chosen), 1_000_000, len(records))
            if isinstance(held, Reading):
                held.position = chosen[-1]
                held.credit -= len(records)
                self.send(protocol.BLOCK, tag, header, records)
            else:
                self.send(protocol.JOBS, tag, header, records, counts)
            return True
        return False

    def _free(self, share: TopicConsumer) -> list[int]:
        topic = share.topic
        chosen: list[int] = []
        for id in range(1, len(topic.bodies) + 1):
            if id in topic.acknowledged or id in topic.handed:
                if chosen:
                    break
                continue
            chosen.append(id)
            if len(chosen) >= min(self.largest, share.credit):
                break
        for id in chosen:
            topic.handed[id] = share
            topic.deliveries[id] = topic.deliveries.get(id, 0) + 1
        share.credit -= len(chosen)
        return chosen

    def _hello(self, tag: bytes, about: bytes) -> None:
        assert json.loads(about)["version"] == 1
        self._end()
        self.greeted = True
        cluster = {"name": "c", "node": "n", "role": "leader" if self.leads else "follower"}
        welcome = {"version": 1, "broker": "b", "max_body": 1000, "cluster": {**cluster, "leader": [], "members": []}}
        self.send(protocol.WELCOME, tag, json.dumps(welcome).encode())

    def _bye(self, tag: bytes) -> None:
        self._end()
        self.send(protocol.BYE, tag)

    def _flush(self, tag: bytes) -> None:
        self._keep()
        self.send(protocol.FLUSHED, tag)

    def _append(
        self, tag: bytes, name: bytes, records: bytes, producer: bytes, sequence: bytes, first_outstanding: bytes
    ) -> None:
        topic = self.topics[name.decode()]
        key = producer, protocol.number(sequence)
        first = topic.producers.get(key)
        if first is None and key[1] < topic.floors.get(producer, 0):
            first = 0  # a late one
        elif first is None:
            first = topic.producers[key] = len(topic.bodies) + 1
            count = blocks.check(records)
            header = blocks.header(first, count, 1_000_000, len(records))
            topic.bodies += [message.body for message in blocks.decode(header, records, "")]
        topic.floors[producer] = max(topic.floors.get(producer, 0), protocol.number(first_outstanding))
        for old in [old for old in topic.producers if old[1] < topic.floors[producer]]:
            del topic.producers[old]
        self.send(protocol.PUBLISHED, tag, u64(first))

    def _subscribe(self, tag: bytes, name: bytes, about: bytes) -> None:
        assert self.greeted
        assert tag not in self.tags
        topic, options = self.topics[name.decode()], json.loads(about)
        position = {"earliest": 0, "latest": len(topic.bodies)}.get(options["replay"], options["replay"])
        if options["name"] is not None:
            position = topic.names.setdefault(options["name"], position)
        self.tags[tag] = Reading(topic, position, options["credit"], options["name"])
        self.send(protocol.SUBSCRIBED, tag, json.dumps({"topic_id": 1, "position": position}).encode())

    def _consume(self, tag: bytes, name: bytes, about: bytes) -> None:
        assert self.greeted
        assert tag not in self.tags
        self.tags[tag] = TopicConsumer(self.topics[name.decode()], json.loads(about)["credit"])
        self.send(protocol.CONSUMING, tag, b'{"topic_id": 1}')

    def _credit(self, tag: bytes, more: bytes) -> None:
        if tag in self.tags:
            self.tags[tag].credit += protocol.number(more)

    def _position(self, tag: bytes, position: bytes) -> None:
        held = self.tags.get(tag)
        if isinstance(held, Reading) and held.name is not None:
            held.topic.names[held.name] = protocol.number(position)

    def _ack(self, tag: bytes, *pairs: bytes) -> None:
        self._done(tag, pairs, True)

    def _nack(self, tag: bytes, *pairs: bytes) -> None:
        self._done(tag, pairs, False)

    def _done(self, tag: bytes, pairs: tuple[bytes, ...], done: bool) -> None:
        share = self.tags.get(tag)
        assert not isinstance(share, Reading)
        for first, last in protocol.ranges(list(pairs)) if share is not None else ():
            for id in range(first, last + 1):
                if share.topic.handed.get(id) is share:
                    del share.topic.handed[id]
                    share.credit += 1
                    if done:
                        share.topic.acknowledged.add(id)

    def _reack(self, tag: bytes, name: bytes, topic_id: bytes, *pairs: bytes) -> None:
        assert self.greeted
        assert protocol.number(topic_id) == 1
        topic = self.topics[name.decode()]
        for first, last in protocol.ranges(list(pairs)):
            for id in range(first, last + 1):
                if (share := topic.handed.pop(id, None)) is not None:
                    share.credit += 1
                topic.acknowledged.add(id)
        self._keep()
        self.send(protocol.REACKED, tag)

    def _keep(self) -> None:
        for topic in self.topics.values():
            topic.durable |= topic.acknowledged

    def _cancel(self, tag: bytes) -> None:
        held = self.tags.pop(tag, None)
        if isinstance(held, TopicConsumer):
            held.topic.handed = {id: share for id, share in held.topic.handed.items() if share is not held}
        self.send(protocol.CANCELLED, tag)
