"""The settings of a topic: names, checks and defaults."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from functools import partial
from typing import Any, Final

from omq.broker.errors import TopicError
from omq.broker.protocol import check_name
from omq.store.interface import keeps_unread

DELIVERIES: Final = ("broadcast", "round-robin")
PERSISTENCES: Final = ("transient", "strong", "weak", "async")
OVERFLOWS: Final = ("block", "reject", "drop-oldest")
BOUNDS: Final = ("max_messages", "max_bytes")
RETENTIONS: Final = ("read",)
#: Settings for one delivery only.
_ONLY: Final = {
    "retention": "broadcast",
    "retain_for": "broadcast",
    "inactive_threshold": "broadcast",
}
_MIN_RETRY_DELAY_S: Final = 0.1
_MAX_RETRY_DELAY_S: Final = 30.0
_MAX_SECONDS: Final = 1e12
_MAX_DELAYS: Final = 100
#: The way to change what cannot be altered.
_MOVE: Final = (
    "To change it, create another topic, publish there what you read or consume from this one, and delete this one"
)
_MAX_SHOWN_TOPICS: Final = 8  # of a cycle, in an error text


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**62:
        raise ValueError("must be a whole number, 1 to 2**62 - 1")
    return value


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < _MAX_SECONDS:
        raise ValueError("must be a number of seconds above 0 and below 1e12")
    return float(value)


def _name(value: object, *, owner: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"must be the name of a {owner}, a string")
    try:
        return check_name(value, f"a {owner}'s name")
    except TopicError as error:
        raise ValueError(str(error)) from None


def _overflow(value: object) -> str:
    if value not in OVERFLOWS:
        raise ValueError(f"must be one of {', '.join(OVERFLOWS)}")
    return str(value)


def _retention(value: object) -> str:
    if value not in RETENTIONS:
        raise ValueError(f"must be {RETENTIONS[0]!r}")
    return str(value)


def _delay(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _MAX_SECONDS:
        raise ValueError("must be a number of seconds, 0 or above and below 1e12, or a list of them, one per attempt")
    return float(value)


def _delays(value: object) -> float | list[float]:
    if not isinstance(value, list | tuple):
        return _delay(value)
    if not 1 <= len(value) <= _MAX_DELAYS:
        raise ValueError(f"has {len(value)} delays; 1 to {_MAX_DELAYS} are allowed")
    return [_delay(one) for one in value]


#: The check of each setting, which returns the normalized value or raises `ValueError` with the reason.
SETTINGS: Final[Mapping[str, Callable[[object], Any]]] = {
    "max_messages": _count,
    "max_bytes": _count,
    "max_age": _seconds,
    "overflow": _overflow,
    "retention": _retention,
    "retain_for": partial(_name, owner="subscription"),
    "inactive_threshold": _seconds,
    "max_deliveries": _count,
    "dead_letter": partial(_name, owner="topic"),
    "retry_delay": _delays,
}


class InvalidSetting(ValueError):
    """A setting of a topic that is not valid.

    Attributes:
        key: The name of the setting.
        value: The value.
        reason: The end of the error text, such as `must be one of block, reject, drop-oldest`.
    """

    def __init__(self, key: str, value: object, reason: str) -> None:
        super().__init__(f"{key[:80]}={value!r:.80}: {reason}")
        self.key = key
        self.value = value
        self.reason = reason


def check_topic(delivery: str, persistence: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Checks delivery, persistence and settings of a topic.

    Returns:
        The normalized settings: seconds as `float`, and without those that are `None`.

    Raises:
        InvalidSetting: A value is not valid.
    """
    for key, chosen, known in (("delivery", delivery, DELIVERIES), ("persistence", persistence, PERSISTENCES)):
        if chosen not in known:
            raise InvalidSetting(key, chosen, f"must be one of {', '.join(known)}")
    found: dict[str, Any] = {}
    for key, value in settings.items():
        if key not in SETTINGS:
            raise InvalidSetting(str(key), value, f"unknown setting {str(key)[:80]!r}{suggestion(str(key), SETTINGS)}")
        if value is None:
            continue
        if delivery != _ONLY.get(key, delivery):
            raise InvalidSetting(key, value, f"is a setting of {_ONLY[key]} topics")
        if key == "overflow" and all(settings.get(bound) is None for bound in BOUNDS):
            raise InvalidSetting(key, value, f"needs {' or '.join(BOUNDS)}: nothing else can overflow")
        try:
            found[key] = SETTINGS[key](value)
        except ValueError as reason:
            raise InvalidSetting(key, value, str(reason)) from None
    return found


def alter_settings(
    delivery: str, persistence: str, settings: Mapping[str, Any], changes: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the settings of a topic after changes.

    Args:
        delivery: The delivery of the topic.
        persistence: The persistence of the topic.
        settings: The settings of the topic.
        changes: Values by setting; `None` removes a setting. Delivery and persistence may be given as they are.

    Raises:
        InvalidSetting: A value is not valid, or the setting of an existing topic cannot change.
    """
    changes = dict(changes)
    for key, has in (("delivery", delivery), ("persistence", persistence)):
        if key in changes and (wanted := changes.pop(key)) != has:
            raise InvalidSetting(key, wanted, f"must be {has!r}, as it cannot change. {_MOVE}")
    return check_topic(delivery, persistence, {**settings, **changes})


def suggestion(key: str, known: Iterable[str]) -> str:
    """Returns the end of an error text about an unknown key: the most similar known key, or all of them."""
    names = list(known)
    close = get_close_matches(key, names, 1)
    return f"; did you mean {close[0]}?" if close else f"; expected one of {', '.join(names)}"


def overflow_of(delivery: str, settings: Mapping[str, Any]) -> str:
    """Returns the setting `overflow`, or its default.

    The default is `drop-oldest` for broadcast topics without `retention` and `retain_for`, and `reject` for others.
    """
    chosen = settings.get("overflow")
    if chosen:
        return str(chosen)
    return "drop-oldest" if delivery == "broadcast" and not keeps_unread(settings) else "reject"


def dead_letter_of(name: str, delivery: str, settings: Mapping[str, Any]) -> str | None:
    """Returns the dead-letter topic of a topic: the setting, or the default if it needs one; `None` for none."""
    chosen = settings.get("dead_letter")
    if chosen is not None:
        return str(chosen)
    drops_work = delivery == "round-robin" and overflow_of(delivery, settings) == "drop-oldest"
    needs_one = settings.get("max_deliveries") is not None or drops_work
    return default_dead_letter(name) if needs_one else None


def default_dead_letter(name: str) -> str:
    """Returns the default name of a topic's dead-letter topic."""
    return f"{name}.dead"


def dead_letter_cycle(name: str, target_of: Callable[[str], str | None]) -> list[str] | None:
    """Finds a cycle of dead-letter topics through which a topic's dead letters would return to it.

    Args:
        name: The topic.
        target_of: Returns the dead-letter topic of a topic; `None` if it has none or does not exist.

    Returns:
        The names in the order of the moves, with *name* as the first and the last one; `None` without a cycle.
    """
    chain = [name]
    seen = {name}
    while (target := target_of(chain[-1])) is not None:
        chain.append(target)
        if target == name:
            return chain
        if target in seen:  # a cycle without *name*
            return None
        seen.add(target)
    return None


def describe_cycle(cycle: list[str]) -> str:
    """Returns the error text about a cycle of dead-letter topics, with a bounded length."""
    shown = [repr(name[:80]) for name in cycle]
    if len(shown) > _MAX_SHOWN_TOPICS:
        shown[_MAX_SHOWN_TOPICS - 1 : -1] = [f"{len(shown) - _MAX_SHOWN_TOPICS} more"]
    return (
        f"its dead letters would come back to it: {' -> '.join(shown)}; "
        "give one of these topics another dead_letter, for instance a broadcast topic"
    )


def retry_delay_of(settings: Mapping[str, Any], attempts: int) -> float:
    """Returns the retry delay in seconds after a number of attempts; the default is 0.1, doubling to 30."""
    delay = settings.get("retry_delay")
    if isinstance(delay, list):
        return float(delay[min(max(attempts, 1), len(delay)) - 1])
    if delay is not None:
        return float(delay)
    return float(min(_MIN_RETRY_DELAY_S * 2.0 ** min(max(attempts, 1) - 1, 16), _MAX_RETRY_DELAY_S))
