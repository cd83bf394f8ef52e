"""Contexts."""

from __future__ import annotations

import atexit
import operator
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any, ClassVar, Generic, Self, TypeAlias, TypeVar, overload
from weakref import WeakSet

from omq.unpatched import threading
from omq.zmq.attributes import AttributeGetter
from omq.zmq.constants import ContextOption, Errno, SocketOption
from omq.zmq.context_state import ContextState, context_at
from omq.zmq.error import ZMQError, error_of
from omq.zmq.socket import Socket, SyncSocket

_SocketType = TypeVar("_SocketType", bound=Socket, covariant=True)  # type: ignore[type-arg]

_exiting = False


def _note_exit() -> None:
    global _exiting
    _exiting = True


atexit.register(_note_exit)


class Context(AttributeGetter, Generic[_SocketType]):
    """Makes sockets.

    As an attribute, an option of sockets (`context.linger = 0`) applies to all sockets that are made later.

    Args:
        io_threads: Checked and kept; omq has one I/O thread. Or another context, for `shadow`.
        shadow: A context, or its `underlying`, that the new object is another face of.
    """

    sockopts: dict[int, Any]
    closed: bool = True
    _state: ContextState | None
    _pid: int
    _instance: Any = None
    _instance_lock: ClassVar[Any] = threading.Lock()
    _instance_pid: int | None = None
    _shadow = False
    _shadow_obj: Any = None
    _warn_destroy_close = False
    _sockets: WeakSet[Any]
    _socket_class: type[Any] = Socket

    @overload
    def __init__(self: SyncContext, io_threads: int = 1) -> None: ...

    @overload
    def __init__(self: SyncContext, io_threads: Context[Any], /) -> None: ...

    @overload
    def __init__(self: SyncContext, *, shadow: Context[Any] | int) -> None: ...

    def __init__(self: Any, io_threads: Any = 1, shadow: Any = 0) -> None:
        self.closed = True
        self._state = None
        if isinstance(io_threads, Context):
            shadow, io_threads = io_threads, 1
        if shadow:
            self._shadow = True
            self._shadow_obj = shadow
            address = getattr(shadow, "underlying", shadow)
            self._state = context_at(int(address))
            if self._state is None:
                raise error_of(Errno.EFAULT)
        else:
            io_threads = operator.index(io_threads)
            if io_threads < 0:
                raise error_of(Errno.EINVAL)
            self._state = ContextState()
            self._state.set(ContextOption.IO_THREADS, io_threads)
        self.closed = False
        self._pid = os.getpid()
        self.sockopts = {}
        self._sockets = WeakSet()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # At the interpreter's end the names of this module may be gone, so the function is an argument.
        if is_finalizing() or self._shadow or _exiting or getattr(self, "closed", True):
            return
        self._warn_destroy_close = True
        warnings.warn(f"Unclosed context {self}", ResourceWarning, stacklevel=2, source=self)
        self.destroy()

    _repr_cls = "zmq.Context"

    def __repr__(self) -> str:
        kind = type(self)
        name = kind.__dict__.get("_repr_cls") or f"{kind.__module__}.{kind.__name__}"
        count = len(getattr(self, "_sockets", ()))
        sockets = f"{count} socket{'s' if count > 1 else ''}" if count else ""
        return f"<{name}({sockets}) at {hex(id(self))}{' closed' if self.closed else ''}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exc_type: Any, exc_value: Any, traceback: Any) -> None:
        self._warn_destroy_close = True
        self.destroy()

    def __copy__(self, memo: Any = None) -> Self:
        return type(self).shadow(self.underlying)

    __deepcopy__ = __copy__

    @classmethod
    def shadow(cls, address: int | Context[Any]) -> Self:
        """Returns another face of a context.

        Args:
            address: The context, or its `underlying`.
        """
        return cls(shadow=address)

    @classmethod
    def shadow_pyczmq(cls, ctx: Any) -> Self:
        """Raises: contexts of libzmq cannot be used."""
        raise ImportError("a context of libzmq cannot be used with omq")

    @classmethod
    def instance(cls, io_threads: int = 1) -> Self:
        """Returns the context of the process; a new one after `term`, and in a forked child."""
        if cls._lacks_instance():
            with cls._instance_lock:
                if cls._lacks_instance():
                    cls._instance = cls(io_threads=io_threads)
                    cls._instance_pid = os.getpid()
        found: Self = cls._instance
        return found

    @classmethod
    def _lacks_instance(cls) -> bool:
        return cls._instance is None or cls._instance_pid != os.getpid() or bool(cls._instance.closed)

    @property
    def underlying(self) -> int:
        """A number for `shadow`; 0 after `term`."""
        return 0 if self._state is None else id(self._state)

    def term(self) -> None:
        """Interrupts all calls with `ContextTerminated`, and waits until all sockets are closed and have sent all."""
        if self._state is not None and not self.closed and self._pid == os.getpid():
            self._state.term()
        self._state = None
        self.closed = True

    def __dir__(self) -> list[str]:
        return [*dir(type(self)), *ContextOption.__members__]

    def _add_socket(self, socket: Any) -> None:
        """Notes a socket for `destroy`."""
        self._sockets.add(socket)

    def _rm_socket(self, socket: Any) -> None:
        """Forgets a socket."""
        sockets = getattr(self, "_sockets", None)
        if sockets is not None:
            sockets.discard(socket)

    def destroy(self, linger: int | None = None) -> None:
        """Closes all sockets that this object has made, and calls `term`.

        Args:
            linger: Milliseconds that accepted messages have to leave; `None` applies each socket's `LINGER`.
        """
        if self.closed:
            return
        for socket in list(self._sockets):
            if socket.closed:
                continue
            if self._warn_destroy_close:
                warnings.warn(
                    f"Destroying context with unclosed socket {socket}", ResourceWarning, stacklevel=3, source=socket
                )
            if linger is not None:
                socket.setsockopt(SocketOption.LINGER, linger)
            socket.close()
        self.term()

    def socket(
        self,
        socket_type: int,
        socket_class: Callable[[Any, int], Any] | None = None,
        **kwargs: Any,
    ) -> _SocketType:
        """Makes a socket.

        Args:
            socket_type: Its type, such as `zmq.PUSH`.
            socket_class: Its class; `None` for the context's.
            **kwargs: Arguments of the class.

        Raises:
            ZMQError: ENOTSUP: The context is terminated. EINVAL: There is no such type. EMFILE: There are as many
                sockets as `MAX_SOCKETS` allows.
        """
        if self.closed:
            raise error_of(Errno.ENOTSUP)
        made = (socket_class or self._socket_class)(self, socket_type, **kwargs)
        for option, value in self.sockopts.items():
            try:
                made.setsockopt(option, value)
            except ZMQError:
                pass  # an option that the type does not have
        self._add_socket(made)
        return made  # type: ignore[no-any-return]

    def setsockopt(self, opt: int, value: Any) -> None:
        """Sets an option of all sockets that this object makes later."""
        self.sockopts[opt] = value

    def getsockopt(self, opt: int) -> Any:
        """Returns what `setsockopt` has set."""
        return self.sockopts[opt]

    def set(self, option: int, optval: int) -> None:
        """Sets an option of the context.

        Raises:
            ZMQError: EINVAL: There is no such option, or the value is not valid.
            RuntimeError: The context is terminated.
        """
        state = self._living()
        if not isinstance(optval, int):
            raise TypeError(f"expected int, got: {optval!r}")
        state.set(operator.index(option), int(optval))

    def get(self, option: int) -> int:
        """Returns an option of the context; raises as `set`."""
        return self._living().get(operator.index(option))

    def _living(self) -> ContextState:
        if self.closed or self._state is None:
            raise RuntimeError("Context has been destroyed")
        return self._state

    def _set_attr_opt(self, name: str, opt: int, value: Any) -> None:
        if name in ContextOption.__members__:
            self.set(opt, value)
        elif name in SocketOption.__members__:
            self.sockopts[opt] = value
        else:
            raise AttributeError(f"No such context or socket option: {name}")

    def _get_attr_opt(self, name: str, opt: int) -> Any:
        if name in ContextOption.__members__:
            return self.get(opt)
        if opt not in self.sockopts:
            raise AttributeError(name)
        return self.sockopts[opt]

    def __delattr__(self, key: str) -> None:
        if key in self.__dict__:
            self.__dict__.pop(key)
            return
        option = SocketOption.__members__.get(key.upper())
        if option is None:
            raise AttributeError(f"No such socket option: {key.upper()!r}")
        if option not in self.sockopts:
            raise AttributeError(key.upper())
        del self.sockopts[option]


SyncContext: TypeAlias = Context[SyncSocket]

__all__ = ["Context", "SyncContext"]
