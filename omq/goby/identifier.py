"""The identifier at the head of a publication: its group, its scheme, its type and its publisher."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from omq.errors import UsageError
from omq.goby.errors import Malformed

_FORBIDDEN: Final = re.compile(r"[/\0]")
_MAX_SHOWN_BYTES: Final = 120  # in an error text
MAX_CACHED_IDENTIFIERS: Final = 4096  # of a portal, for each direction

#: The prefix of the groups between portals and managers.
INTERNAL: Final = "goby::zeromq::_internal_"
MANAGER_REQUEST: Final = INTERNAL + "manager_request"
MANAGER_RESPONSE: Final = INTERNAL + "manager_response"


class Group(str):
    """A group of publications: a name, a number, or both (`name;N` on the wire).

    Args:
        name: The name; empty for a group with a number alone.
        number: The number; `None` for a group with a name alone.

    Raises:
        UsageError: Both are missing, or the name has a `/` or a NUL, or cannot be encoded in UTF-8.
    """

    __slots__ = ()

    def __new__(cls, name: str = "", number: int | None = None) -> Group:
        text = name if number is None else f"{name};{number}" if name else str(number)
        return super().__new__(cls, checked_group(text))


def checked_group(group: str | int) -> str:
    """Returns a group as it is on the wire.

    Raises:
        UsageError: The group is empty, has a `/` or a NUL, or cannot be encoded in UTF-8.
        TypeError: The group is neither a `str` nor an `int`.
    """
    if isinstance(group, int) and not isinstance(group, bool):
        return str(group)
    if not isinstance(group, str):
        raise TypeError(f"a group must be a str or an int, not {type(group).__name__}: {group!r}")
    return _checked("group", group)


def checked_type(name: str) -> str:
    """Returns the name of a type, once it is checked.

    Raises:
        UsageError: The name is empty, has a `/` or a NUL, or cannot be encoded in UTF-8.
        TypeError: The name is not a `str`.
    """
    if not isinstance(name, str):
        raise TypeError(f"a type's name must be a str, not {type(name).__name__}: {name!r}")
    return _checked("type", name)


def _checked(what: str, text: str) -> str:
    if not text:
        raise UsageError(f"{what} is empty")
    if (found := _FORBIDDEN.search(text)) is not None:
        raise UsageError(f"{what}={text!r}: has {'a NUL' if found[0] != '/' else 'a /'}, which ends a part on the wire")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{what}={text!r}: cannot be encoded in UTF-8") from None
    return text


def prefix_of(group: str, scheme: str, type: str) -> bytes:
    """Returns the prefix of all publications of a type to a group, for a ZeroMQ subscription."""
    return f"/{group}/{scheme}/{type}/".encode()


def head_of(group: str, scheme: str, type: str, pid: int, thread: int) -> bytes:
    """Returns the part of a publication before the payload: the identifier and the NUL."""
    return f"/{group}/{scheme}/{type}/{pid}/{thread:x}/\0".encode()


@dataclass(frozen=True, slots=True)
class Identifier:
    """The identifier at the head of a publication.

    Attributes:
        group: The group.
        scheme: The marshalling scheme, as it is called on the wire.
        type: The type's name within the scheme.
        pid: The publishing process.
        thread: The publishing thread, in hexadecimal.
    """

    group: str
    scheme: str
    type: str
    pid: int
    thread: str

    @property
    def prefix(self) -> bytes:
        """The prefix of a subscription to this group, scheme and type."""
        return prefix_of(self.group, self.scheme, self.type)


def read_identifier(head: bytes) -> Identifier:
    """Parses an identifier, which is the part of a publication before the NUL.

    Raises:
        Malformed: A part is missing or not valid.
    """
    parts = head.split(b"/", 6)
    if len(parts) < 7 or parts[0]:
        raise Malformed(f"an identifier has five parts, each between /: {shown(head)}")
    _, group, scheme, type, pid, thread, _ = parts
    if not (group and scheme and type and thread):
        raise Malformed(f"a part of an identifier is empty: {shown(head)}")
    if not (pid.isdigit() and len(pid) < 20):
        raise Malformed(f"the process of an identifier is not a number: {shown(head)}")
    try:
        return Identifier(group.decode(), scheme.decode(), type.decode(), int(pid), thread.decode())
    except UnicodeDecodeError:
        raise Malformed(f"an identifier is not valid UTF-8: {shown(head)}") from None


def split_frame(frame: bytes) -> tuple[bytes, bytes]:
    """Returns the parts of a publication before and after its first NUL.

    Raises:
        Malformed: The publication has no NUL.
    """
    end = frame.find(b"\0")
    if end < 0:
        raise Malformed(f"a publication has no NUL after its identifier: {shown(frame)}")
    return frame[:end], frame[end + 1 :]


def shown(data: bytes) -> str:
    """Formats bytes for an error text, truncated."""
    return repr(data[:_MAX_SHOWN_BYTES]) + ("..." if len(data) > _MAX_SHOWN_BYTES else "")
