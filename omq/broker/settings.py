"""The settings of a topic: which there are, which values they take, and what they mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from omq.broker.errors import TopicError
from omq.broker.protocol import check_name

__all__ = ["BOUNDS", "OVERFLOWS", "SETTINGS", "check_setting", "overflow_of", "retry_delay_of"]

OVERFLOWS: Final = ("block", "reject", "drop-oldest")
BOUNDS: Final = ("max_messages", "max_bytes")
#: Settings that only round-robin topics have.
_ROUND_ROBIN: Final = frozenset({"max_deliveries", "dead_letter", "retry_delay"})
_FIRST_RETRY_S: Final = 0.1
_LAST_RETRY_S: Final = 30.0
_MAX_SECONDS: Final = 1e12
_MAX_DELAYS: Final = 100


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
    if name in _ROUND_ROBIN and delivery != "round-robin":
        raise ValueError("is a setting of round-robin topics")
    if name == "overflow" and all(settings.get(bound) is None for bound in BOUNDS):
        raise ValueError(f"needs {' or '.join(BOUNDS)}: nothing else can overflow")
    return SETTINGS[name](value)


def overflow_of(delivery: str, settings: Mapping[str, Any]) -> str:
    """Returns what a full topic does: its setting, or the default of its delivery."""
    chosen = settings.get("overflow")
    return str(chosen) if chosen else "drop-oldest" if delivery == "broadcast" else "reject"


def retry_delay_of(settings: Mapping[str, Any], attempts: int) -> float:
    """Returns the seconds that a message waits after a number of attempts: 0.1, doubling to 30, unless it is set."""
    delay = settings.get("retry_delay")
    if isinstance(delay, list):
        return float(delay[min(max(attempts, 1), len(delay)) - 1])
    if delay is not None:
        return float(delay)
    return float(min(_FIRST_RETRY_S * 2.0 ** min(max(attempts, 1) - 1, 16), _LAST_RETRY_S))
