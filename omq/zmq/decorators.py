"""Decorators that make a context or a socket for each call of a function."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from typing import Any, TypeVar

from omq.zmq.context import Context

_Function = TypeVar("_Function", bound=Callable[..., object])
_Target = Callable[..., AbstractContextManager[Any]]


class _Decorator:
    """Makes decorators that pass an object to the function, and close it after the call.

    Args:
        target: Makes the object.
    """

    def __init__(self, target: _Target | None = None) -> None:
        self._target = target

    def __call__(self, *dec_args: Any, **dec_kwargs: Any) -> Callable[[_Function], _Function]:
        """Returns the decorator.

        Args:
            *dec_args: A keyword for the function, if the first is text; the others go to the target.
            **dec_kwargs: The keyword as `name`; the others go to the target.
        """
        keyword, dec_args, dec_kwargs = self.process_decorator_args(*dec_args, **dec_kwargs)

        def decorate(func: Any) -> Any:
            @wraps(func)
            def call(*args: Any, **kwargs: Any) -> Any:
                target = self.get_target(*args, **kwargs)
                assert target is not None
                with target(*dec_args, **dec_kwargs) as made:
                    if not keyword:
                        return func(*args, made, **kwargs)
                    if keyword in kwargs:
                        raise TypeError(f"{func.__name__}() got multiple values for argument '{keyword}'")
                    return func(*args, **kwargs, **{keyword: made})

            return call

        return decorate

    def get_target(self, *args: Any, **kwargs: Any) -> _Target | None:
        """Returns what makes the object, for a call with these arguments."""
        return self._target

    def process_decorator_args(self, *args: Any, **kwargs: Any) -> tuple[str | None, tuple[Any, ...], dict[str, Any]]:
        """Returns the keyword and the arguments of the target."""
        if isinstance(kwargs.get("name"), str):
            return kwargs.pop("name"), args, kwargs
        if args and isinstance(args[0], str):
            return args[0], args[1:], kwargs
        return None, args, kwargs


class _ContextDecorator(_Decorator):
    """Makes decorators that pass a context."""

    def __init__(self) -> None:
        super().__init__(Context)


class _SocketDecorator(_Decorator):
    """Makes decorators that pass a socket of a context among the function's arguments."""

    def process_decorator_args(self, *args: Any, **kwargs: Any) -> tuple[str | None, tuple[Any, ...], dict[str, Any]]:
        """Returns the keyword and the arguments of the target; keeps the context's keyword."""
        keyword, args, kwargs = super().process_decorator_args(*args, **kwargs)
        self.context_name = kwargs.pop("context_name", "context")
        return keyword, args, kwargs

    def get_target(self, *args: Any, **kwargs: Any) -> _Target:
        """Returns the method that makes sockets."""
        target: _Target = self._get_context(*args, **kwargs).socket
        return target

    def _get_context(self, *args: Any, **kwargs: Any) -> Context[Any]:
        """Returns the context: the keyword argument, else the first positional one, else the process's."""
        for value in (kwargs.get(self.context_name), *args):
            if isinstance(value, Context):
                return value
        return Context.instance()


def context(*args: Any, **kwargs: Any) -> Callable[[_Function], _Function]:
    """Returns a decorator that passes a new context, and destroys it after the call.

    Args:
        *args: The keyword of the function that gets it, if the first is text; the others go to `Context`.
        **kwargs: The keyword as `name`; the others go to `Context`.
    """
    return _ContextDecorator()(*args, **kwargs)


def socket(*args: Any, **kwargs: Any) -> Callable[[_Function], _Function]:
    """Returns a decorator that passes a new socket, and closes it after the call.

    Args:
        *args: The keyword of the function that gets it, if the first is text; the others go to `Context.socket`.
        **kwargs: The keyword as `name`; as `context_name` that of the context; the others go to `Context.socket`.
    """
    return _SocketDecorator()(*args, **kwargs)


__all__ = ("context", "socket")
