"""What a client of the ZMTP door does with topics as such: makes, deletes and lists them, and the names they keep."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, Protocol

from omq.broker import protocol as p
from omq.broker.core.broadcast import BroadcastTopic
from omq.broker.core.broker import Broker
from omq.broker.core.topic import Topic
from omq.broker.errors import PermissionDenied, SyntaxFault, TopicError
from omq.broker.settings import dead_letter_of

#: Topics that are told of in one turn of the loop.
_LISTED: Final = 128


class Asker(Protocol):
    """The connection that asks.

    Attributes:
        user: Its user id; `None` for none.
        alive: It is not over.
        broker: The core.
        listing: Held by its list of all topics.
    """

    user: str | None
    alive: bool
    broker: Broker
    listing: asyncio.Lock

    def put(self, parts: tuple[bytes | memoryview, ...]) -> None:
        """Sends it a message."""

    def may(self, action: str, name: str) -> None:
        """Raises `PermissionDenied` if it may not."""

    def topic(self, part: bytes, action: str) -> Topic:
        """The topic that a part names, if it may do *action* with it."""

    def task(self, tag: bytes, work: Coroutine[Any, Any, None]) -> None:
        """Has the request with this tag go on in the background."""


def create(session: Asker, tag: bytes, message: list[bytes]) -> None:
    """Makes a topic, or finds it as it is asked for."""
    said = p.json_object(message, 2)
    name, settings = said.get("name"), said.get("settings", {})
    delivery, persistence = said.get("delivery", "broadcast"), said.get("persistence", "strong")
    if not isinstance(name, str):
        raise SyntaxFault("name is a string")
    if not isinstance(settings, dict):
        raise SyntaxFault("settings is an object")
    p.check_name(name)
    session.may("create", name)
    if name not in session.broker.topics:
        _may_bury(session, name, str(delivery), settings)

    async def made() -> None:
        topic = await session.broker.create(
            name, delivery=str(delivery), persistence=str(persistence), settings=settings
        )
        session.put((p.CREATED, tag, topic.info()))

    session.task(tag, made())


def _may_bury(session: Asker, name: str, delivery: str, settings: dict[str, Any]) -> None:
    """Refuses dead letters that would go where the client may not publish, or make what it may not create."""
    target = dead_letter_of(name, delivery, settings)
    if target is not None:
        session.may("publish", target)
        if target not in session.broker.topics:
            session.may("create", target)


def delete(session: Asker, tag: bytes, message: list[bytes]) -> None:
    """Deletes a topic, with everything in it."""
    name = p.topic_name(message[2])
    session.may("delete", name)

    async def deleted() -> None:
        await session.broker.delete(name)
        session.put((p.DELETED, tag))

    session.task(tag, deleted())


def topics(session: Asker, tag: bytes, message: list[bytes]) -> None:
    """Tells the topics that the client may do anything with."""
    granted = session.broker.permissions.granted
    if p.optional(message, 2):
        name = p.topic_name(message[2])
        if not granted(session.user, name):
            raise PermissionDenied(f"{session.user or 'a client without a name'} may do nothing with {name!r}")
        session.put((p.TOPICS, tag, b"[" + session.broker.topic(name).info() + b"]"))
        return

    async def tell() -> None:
        told: list[bytes] = []
        # One list at a time, of each connection in turn, and bit by bit: the loop has others to look after.
        async with session.listing, session.broker.listing:
            for at, name in enumerate(sorted(session.broker.topics)):
                if not session.alive:
                    return
                topic = session.broker.topics.get(name)
                if topic is not None and granted(session.user, name):
                    told.append(topic.info())
                if at % _LISTED == _LISTED - 1:
                    await asyncio.sleep(0)
        session.put((p.TOPICS, tag, b"[" + b",".join(told) + b"]"))

    session.task(tag, tell())


def names(session: Asker, tag: bytes, message: list[bytes]) -> None:
    """Tells the named positions of a topic."""
    topic = session.topic(message[2], "subscribe")
    session.put((p.NAMES, tag, p.pack_json(topic.names())))


def forget(session: Asker, tag: bytes, message: list[bytes]) -> None:
    """Forgets a named position."""
    topic = session.topic(message[2], "subscribe")
    if len(message[3]) > p.MAX_NAME:
        raise TopicError(f"a subscription's name has {p.MAX_NAME} bytes at most, not {len(message[3])}")
    name = message[3].decode("utf-8", "replace")
    if not isinstance(topic, BroadcastTopic):
        raise TopicError(f"{topic.name!r} is a round-robin topic: it has no named positions")
    broadcast = topic

    async def forgotten() -> None:
        await broadcast.forget(name)
        session.put((p.FORGOTTEN, tag))

    session.task(tag, forgotten())
