"""Options as attributes of sockets and contexts."""

from __future__ import annotations

import errno
from typing import Any

from omq.zmq import constants
from omq.zmq.error import ZMQError


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

    def __getattr__(self, key: str) -> Any:
        option = self._number(key)
        try:
            return self._get_attr_opt(key.upper(), option)
        except ZMQError as error:
            if error.errno in (errno.EINVAL, errno.EFAULT):
                raise AttributeError(f"{key} attribute is write-only") from None
            raise

    def _get_attr_opt(self, name: str, opt: int) -> Any:
        """Gets an option by its name."""
        return self.get(opt)

    def get(self, option: int) -> Any:
        """Gets an option."""
        raise NotImplementedError("override in subclass")

    def set(self, option: int, value: Any) -> None:
        """Sets an option."""
        raise NotImplementedError("override in subclass")


__all__ = ["AttributeSetter"]
