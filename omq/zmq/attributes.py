"""Options as attributes of sockets and contexts."""

from __future__ import annotations

import errno
from typing import Any, TypeVar

from omq.zmq import constants
from omq.zmq.constants import SocketOption
from omq.zmq.error import ZMQError

_T = TypeVar("_T")


class AttributeSetter:
    """Sets and gets options by their names, in any case."""

    def __setattr__(self, key: str, value: Any) -> None:
        if key in self.__dict__ or any(
            key in cls.__dict__ or key in getattr(cls, "__annotations__", {}) for cls in type(self).__mro__
        ):
            object.__setattr__(self, key, value)
            return
        self._set_attr_opt(key.upper(), self._number(key), value)

    def _number(self, key: str) -> int:
        try:
            return int(getattr(constants, key.upper()))
        except (AttributeError, TypeError, ValueError):
            raise AttributeError(f"{type(self).__name__} has no such option: {key.upper()}") from None

    def _set_attr_opt(self, name: str, opt: int, value: Any) -> None:
        """Sets an option by its name."""
        self.set(opt, value)

    def _get_attr_opt(self, name: str, opt: int) -> Any:
        """Gets an option by its name."""
        return self.get(opt)

    def get(self, option: int) -> Any:
        """Gets an option."""
        raise NotImplementedError("override in subclass")

    def set(self, option: int, value: Any) -> None:
        """Sets an option."""
        raise NotImplementedError("override in subclass")


class AttributeGetter(AttributeSetter):
    """Gets options by their names, too."""

    def __getattr__(self, key: str) -> Any:
        option = self._number(key)
        try:
            return self._get_attr_opt(key.upper(), option)
        except ZMQError as error:
            if error.errno in (errno.EINVAL, errno.EFAULT):
                raise AttributeError(f"{key} attribute is write-only") from None
            raise


def with_option_properties(kind: type[_T]) -> type[_T]:
    """Adds a property for each option of sockets to a class, in the usual cases: `LINGER`, `linger`, `Linger`.

    `__getattr__` would do, too, but a class with it looks up each method more slowly, such as `send`.
    """
    for name, option in SocketOption.__members__.items():
        for key in {name, name.lower(), name.capitalize(), name.title()}:
            if key not in kind.__dict__ and key != "type":
                setattr(kind, key, _property_of(key, int(option)))
    return kind


def _property_of(key: str, option: int) -> property:
    def get(self: Any) -> Any:
        try:
            return self._get_attr_opt(key.upper(), option)
        except ZMQError as error:
            if error.errno in (errno.EINVAL, errno.EFAULT):
                raise AttributeError(f"{key} attribute is write-only") from None
            raise

    def set_(self: Any, value: Any) -> None:
        self._set_attr_opt(key.upper(), option, value)

    return property(get, set_)


__all__ = ["AttributeGetter", "AttributeSetter", "with_option_properties"]
