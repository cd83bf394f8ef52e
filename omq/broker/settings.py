"""The settings of a topic: which there are, which values they take, and what they mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from omq.broker.errors import TopicError
from omq.broker.protocol import check_name

__all__ = [
    "BOUNDS",
    "OVERFLOWS",
    "SETTINGS",
    "check_setting",
    "dead_letter_of",
    "dead_letter_ring",
    "default_dead_letter",
    "describe_ring",
    "overflow_of",
    "retry_delay_of",
]

OVERFLOWS: Final = ("block", "reject", "drop-oldest")
BOUNDS: Final = ("max_messages", "max_bytes")
#: Settings that topics of one delivery alone have.
_ONLY: Final = {
    "max_deliveries": "round-robin",
    "dead_letter": "round-robin",
    "retry_delay": "round-robin",
    "retain_for": "broadcast",
}
_FIRST_RETRY_S: Final = 0.1
_LAST_RETRY_S: Final = 30.0
_MAX_SECONDS: Final = 1e12
_MAX_DELAYS: Final = 100
_MAX_SHOWN_TOPICS: Final = 8  # of a ring, in an error


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**62:
        raise ValueError("must be a whole number of 1 or more")
    return value


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < _MAX_SECONDS:
        raise ValueError("must be a number of seconds above 0")
    return float(value)


def _topic_name(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("must be the name of a topic, a string")
    try:
        return check_name(value)
    except TopicError as error:
        raise ValueError(str(error)) from None


def _subscription_name(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("must be the name of a durable subscription, a string")
    try:
        return check_name(value, "a subscription's name")
    except TopicError as error:
        raise ValueError(str(error)) from None


def _overflow(value: object) -> str:
    if value not in OVERFLOWS:
        raise ValueError(f"must be one of {', '.join(OVERFLOWS)}")
    return str(value)


def _delay(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _MAX_SECONDS:
        raise ValueError("must be a number of seconds of 0 or more, or a list of them, one for each attempt")
    return float(value)


def _delays(value: object) -> float | list[float]:
    if not isinstance(value, list | tuple):
        return _delay(value)
    if not 1 <= len(value) <= _MAX_DELAYS:
        raise ValueError(f"must have 1 to {_MAX_DELAYS} delays")
    return [_delay(one) for one in value]


#: The settings, each with its check, which returns the value or raises `ValueError` with the reason.
SETTINGS: Final[Mapping[str, Callable[[object], Any]]] = {
    "max_messages": _count,
    "max_bytes": _count,
    "max_age": _seconds,
    "overflow": _overflow,
    "retain_for": _subscription_name,
    "max_deliveries": _count,
    "dead_letter": _topic_name,
    "retry_delay": _delays,
}


def check_setting(name: str, value: object, delivery: str, settings: Mapping[str, Any]) -> Any:
    """Checks one setting of a topic.

    Args:
        name: Its name, one of `SETTINGS`.
        value: Its value.
        delivery: The topic's: `broadcast` or `round-robin`.
        settings: All settings of the topic.

    Returns:
        The value in its normal form: seconds as `float`.

    Raises:
        ValueError: It does not fit; the text is the reason.
    """
    if name in _ONLY and delivery != _ONLY[name]:
        raise ValueError(f"is a setting of {_ONLY[name]} topics")
    if name == "overflow" and all(settings.get(bound) is None for bound in BOUNDS):
        raise ValueError(f"needs {' or '.join(BOUNDS)}: nothing else can overflow")
    return SETTINGS[name](value)


def overflow_of(delivery: str, settings: Mapping[str, Any]) -> str:
    """Returns what a full topic does: its setting, or the default, which drops nothing that a reader is promised."""
    chosen = settings.get("overflow")
    if chosen:
        return str(chosen)
    return "drop-oldest" if delivery == "broadcast" and settings.get("retain_for") is None else "reject"


def dead_letter_of(name: str, delivery: str, settings: Mapping[str, Any]) -> str | None:
    """Returns the dead-letter topic of a topic: its setting, or the default of those that need one; `None` for none."""
    if delivery != "round-robin":
        return None
    chosen = settings.get("dead_letter")
    if chosen is not None:
        return str(chosen)
    needs_one = settings.get("max_deliveries") is not None or overflow_of(delivery, settings) == "drop-oldest"
    return default_dead_letter(name) if needs_one else None


def default_dead_letter(name: str) -> str:
    """Returns the dead-letter topic of a topic that names none."""
    return f"{name}.dead"


def dead_letter_ring(name: str, target_of: Callable[[str], str | None]) -> list[str] | None:
    """Finds the topics through which the dead letters of a topic come back to it.

    Args:
        name: The topic.
        target_of: Returns the dead-letter topic of a topic; `None` where it has none, or is not there.

    Returns:
        Their names in the order of the moves, with *name* as the first and the last; `None` where none comes back.
    """
    chain = [name]
    seen = {name}
    while (target := target_of(chain[-1])) is not None:
        chain.append(target)
        if target == name:
            return chain
        if target in seen:  # a ring of others
            return None
        seen.add(target)
    return None


def describe_ring(ring: list[str]) -> str:
    """Returns a ring of topics as an error shows it, which is of bounded length."""
    shown = [repr(name[:80]) for name in ring]
    if len(shown) > _MAX_SHOWN_TOPICS:
        shown[_MAX_SHOWN_TOPICS - 1 : -1] = [f"{len(shown) - _MAX_SHOWN_TOPICS} more"]
    return " -> ".join(shown)


def retry_delay_of(settings: Mapping[str, Any], attempts: int) -> float:
    """Returns the seconds that a message waits after a number of attempts: 0.1, doubling to 30, unless it is set."""
    delay = settings.get("retry_delay")
    if isinstance(delay, list):
        return float(delay[min(max(attempts, 1), len(delay)) - 1])
    if delay is not None:
        return float(delay)
    return float(min(_FIRST_RETRY_S * 2.0 ** min(max(attempts, 1) - 1, 16), _LAST_RETRY_S))
