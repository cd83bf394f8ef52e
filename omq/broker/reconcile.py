"""Brings the topics of a broker to what `broker.toml` and `--topic` declare: creates them, or alters their settings."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Coroutine, Iterable
from typing import Any

from omq.broker.config import TopicSpec, shown
from omq.broker.core.broker import Broker
from omq.broker.core.topic import Topic
from omq.broker.errors import TopicError
from omq.broker.settings import check_topic, dead_letter_cycle, dead_letter_of, describe_cycle


class TopicPlan:
    """The changes by which topics become what is declared. All are checked before the first one is made.

    A declaration has all settings of its topic: those that it does not name are removed. Other topics stay.

    Args:
        broker: The broker, which was started.
        declared: The topics, each name once.

    Raises:
        TopicError: A topic cannot become what is declared, or messages would be dropped. The text names the place.
    """

    def __init__(self, broker: Broker, declared: Iterable[TopicSpec]) -> None:
        self._broker = broker
        self._new: list[TopicSpec] = []
        self._altered: list[tuple[TopicSpec, dict[str, Any]]] = []
        self._targets: dict[str, str | None] = {}  # the dead-letter topics as they are declared
        for spec in declared:
            topic = broker.topics.get(spec.name)
            if topic is None:
                self._new.append(spec)
            elif changes := _changes(topic, spec):
                self._altered.append((spec, changes))
            self._targets[spec.name] = dead_letter_of(spec.name, spec.delivery, spec.settings)
        for spec in (*self._new, *(spec for spec, _ in self._altered)):
            if self._target_of(spec.name) == broker.target_of(spec.name):
                continue
            cycle = dead_letter_cycle(spec.name, self._target_of)
            if cycle is not None:
                raise _error(spec, f"topic {spec.name!r}: {describe_cycle(cycle)}")

    def _target_of(self, name: str) -> str | None:
        """Returns the dead-letter topic of a topic after the changes."""
        return self._targets[name] if name in self._targets else self._broker.target_of(name)

    def _distance(self, spec: TopicSpec) -> int:
        """Returns the number of dead-letter topics that follow a topic after the changes."""
        seen: set[str] = set()  # an older version may have stored a cycle
        name: str | None = spec.name
        while name is not None and name not in seen:
            seen.add(name)
            name = self._target_of(name)
        return len(seen)

    async def apply(self) -> None:
        """Makes the changes.

        Raises:
            TopicError: A topic was changed meanwhile by a client.
            BrokerError: The store has failed, or is full: some changes may be made.
        """
        # Each topic comes after its dead-letter topic: no step closes a cycle that a later one would open.
        for spec, changes in sorted(self._altered, key=lambda one: self._distance(one[0])):
            # What it drops now was published after the check, and would be dropped after the change, too.
            await _named(spec, self._broker.alter(spec.name, changes, force=True))
        # Created together, the topics share commits.
        await asyncio.gather(*(_named(spec, self._create(spec)) for spec in self._new))

    async def _create(self, spec: TopicSpec) -> None:
        await self._broker.create(
            spec.name, delivery=spec.delivery, persistence=spec.persistence, settings=spec.settings
        )


def _changes(topic: Topic, spec: TopicSpec) -> dict[str, Any]:
    """Returns the changes by which a topic becomes what is declared.

    Raises:
        TopicError: It cannot, or would drop messages.
    """
    for key, has, wanted in (
        ("delivery", topic.delivery, spec.delivery),
        ("persistence", topic.persistence, spec.persistence),
    ):
        if has != wanted:
            raise _error(
                spec,
                f"{key} = {shown(wanted)}: topic {topic.name!r} has {shown(has)}, which cannot change. Restore it, or "
                "use another name, publish there what you read or consume from this topic, and delete this topic",
            )
    settings = check_topic(spec.delivery, spec.persistence, spec.settings)
    if settings == topic.settings:
        return {}
    for key, text in topic.losses(settings):
        value, before = settings.get(key), topic.settings.get(key)
        setting = f"{key}={'none' if value is None else value}"
        command = f"omq topic alter {shlex.quote(topic.name)} {shlex.quote(setting)} --force"
        raise _error(
            spec,
            f"{key} = {_or_unset(value)}: topic {topic.name!r} has {_or_unset(before)}, and {text}. Restore it and run "
            f"`{command}`, or delete the topic",
        )
    return {**dict.fromkeys(topic.settings), **settings}


def _or_unset(value: object) -> str:
    return "no value" if value is None else shown(value)


def _error(spec: TopicSpec, text: str) -> TopicError:
    return TopicError(f"{spec.place}: {text}" if spec.place else text)


async def _named(spec: TopicSpec, change: Coroutine[Any, Any, Any]) -> None:
    """Makes a change; its `TopicError` names the place of the topic."""
    try:
        await change
    except TopicError as error:
        raise _error(spec, str(error)) from None
