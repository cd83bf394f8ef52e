"""Frames: parts of messages with their properties."""

from __future__ import annotations

import sys
from typing import Any, Self

from omq._core.zmq.frame import FrameData
from omq.zmq.attributes import AttributeGetter
from omq.zmq.constants import MORE, SHARED, SRCFD, Errno
from omq.zmq.error import ZMQError
from omq.zmq.tracker import _FINISHED_TRACKER, MessageTracker, Release

#: Size in bytes from which a frame, or `send` without `copy`, shares the caller's memory.
COPY_THRESHOLD = 65536


def default_copy_threshold() -> int:
    """Returns `zmq.COPY_THRESHOLD`, which programs may set."""
    return int(getattr(sys.modules[__package__ or ""], "COPY_THRESHOLD", COPY_THRESHOLD))


#: Properties of a sender, next to those that it sent, by lower-case name.
_ADDRESS = "peer-address"


class Frame(FrameData, AttributeGetter):
    """A part of a message, with its memory and its properties.

    Args:
        data: An object with contiguous memory; `None` for an empty part.
        track: Whether to make a tracker.
        copy: Whether to copy the memory; otherwise the frame shares it. `None` decides by the size.
        copy_threshold: The size from which the memory is shared; `None` for `zmq.COPY_THRESHOLD`.

    Attributes:
        more: Whether another part of the message follows.
        tracker: The tracker, or `None`.
    """

    def __init__(
        self,
        data: Any = None,
        track: bool = False,
        copy: bool | None = None,
        copy_threshold: int | None = None,
        **kwargs: Any,
    ) -> None:
        if isinstance(data, str):
            raise TypeError("Str objects not allowed. Only: bytes, buffer interfaces.")
        if track:
            self.tracker = _FINISHED_TRACKER
        if data is None:
            return
        if copy is None:
            threshold = default_copy_threshold() if copy_threshold is None else copy_threshold
            copy = bool(threshold) and memoryview(data).nbytes < threshold
        if copy:
            self._copy_from(data)
            return
        release = Release() if track else None
        self._lend(data, release, None if release is None else MessageTracker(release))

    def __copy__(self) -> Self:
        return self.fast_copy()

    def fast_copy(self) -> Self:
        """Returns a frame that shares the memory."""
        twin = type(self)()
        twin._share(self)
        return twin

    def get(self, option: int | str | bytes) -> Any:
        """Returns a property.

        Args:
            option: `MORE`, `SHARED` or `SRCFD`; `"group"`, `"routing_id"`, or a property of the sender such as
                `"User-Id"`, `"Socket-Type"` or `"Peer-Address"`.

        Raises:
            ZMQError: EINVAL: The frame does not have it.
        """
        if isinstance(option, int):
            if option == MORE:
                return int(self.more)
            if option == SHARED:
                return int(self._is_shared)
            if option == SRCFD:
                return -1
            raise ZMQError(Errno.EINVAL)
        if isinstance(option, bytes):
            option = option.decode()
        if not isinstance(option, str):
            raise TypeError(f"expected str, got: {option!r}")
        if option == "routing_id":
            if not self._routing_id:
                raise ZMQError(Errno.EINVAL)
            return self._routing_id
        if option == "group":
            return self._group or ""
        found = self._property(option.lower())
        if found is None:
            raise ZMQError(Errno.EINVAL)
        return found

    def _property(self, name: str) -> str | None:
        peer: Any = self._peer
        if peer is None:
            return None
        if name == "user-id":
            return None if peer.user_id is None else str(peer.user_id)
        if name == _ADDRESS:
            return str(self._peer_address).rpartition("://")[2].rpartition(":")[0] or None
        if name in ("identity", "routing-id"):
            return bytes.decode(peer.properties.get(b"identity", b""), errors="replace")
        value = peer.properties.get(name.encode())
        return None if value is None else bytes.decode(value, errors="replace")

    def set(self, option: int | str, value: Any) -> None:
        """Sets `"group"` or `"routing_id"`.

        Raises:
            ZMQError: EINVAL: Another property, or the value is not valid.
        """
        if option == "routing_id":
            if not isinstance(value, int):
                raise TypeError(f"an integer is required, not {value!r}")
            if value == 0:
                raise ZMQError(Errno.EINVAL)
            self._routing_id = value
        elif option == "group":
            text = value.decode() if isinstance(value, bytes) else value
            if not isinstance(text, str):
                raise TypeError(f"expected str, got: {value!r}")
            if len(text.encode()) > 255:
                raise ZMQError(Errno.EINVAL)
            self._group = text
        else:
            raise ZMQError(Errno.EINVAL)

    def __getitem__(self, key: int | str | bytes) -> Any:
        return self.get(key)

    def __repr__(self) -> str:
        size = len(self)
        if size <= 16:
            shown, rest = self.bytes, ""
        else:
            shown = memoryview(self)[:12].tobytes()
            count, unit = size, "B"
            for limit, divisor, name in ((1e9, 1e9, "GB"), (2**20, 1e6, "MB"), (1e3, 1e3, "kB")):
                if size >= limit:
                    count, unit = int(size // divisor), name
                    break
            rest = f"...{count}{unit}"
        module = type(self).__module__
        module = "zmq" if module == __name__ else module
        return f"<{module}.{type(self).__name__}({shown!r}{rest})>"

    @property
    def group(self) -> str:
        """The group of a message of RADIO and DISH."""
        return str(self.get("group"))

    @group.setter
    def group(self, group: str | bytes) -> None:
        self.set("group", group)

    @property
    def routing_id(self) -> int:
        """The number of the peer of a message of SERVER, CLIENT and PEER."""
        return int(self.get("routing_id"))

    @routing_id.setter
    def routing_id(self, routing_id: int) -> None:
        self.set("routing_id", routing_id)


Message = Frame

__all__ = ["Frame", "Message"]
