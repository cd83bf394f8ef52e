"""Marshalling schemes: how a message becomes a payload, and what its type is called on the wire."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NoReturn, TypeVar

from google.protobuf.message import DecodeError, EncodeError
from google.protobuf.message import Message as ProtobufMessage

from omq.errors import UsageError
from omq.goby.errors import Malformed
from omq.goby.identifier import checked_type, shown
from omq.serving.extras import missing_extra

#: The schemes that have a name on the wire (`goby::middleware::MarshallingScheme`); all others are their number.
NUMBERS: Final = {"CSTR": 0, "PROTOBUF": 1, "DCCL": 2, "CXX_OBJECT": 5, "MAVLINK": 6, "JSON": 7}
_NAMES: Final = {number: name for name, number in NUMBERS.items()}

SchemeId = str | int
_Message = TypeVar("_Message", bound=ProtobufMessage)


@dataclass(frozen=True)
class Scheme:
    """A marshalling scheme of one's own.

    Args:
        number: Its number, which stands on the wire unless Goby has a name for it.
        name: What this program calls it.
        handles: Whether it can marshal a type.
        encode: Makes the payload of a message.
        decode: Makes a message of a type out of a payload; any error means that it cannot.
        type_name: What a type is called on the wire; `None`: its `__name__`.

    Raises:
        UsageError: The number or the name does not fit.
    """

    number: int
    name: str
    handles: Callable[[type], bool]
    encode: Callable[[Any], bytes]
    decode: Callable[[Any, bytes], Any]
    type_name: Callable[[Any], str] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.number, int) or isinstance(self.number, bool) or not 0 <= self.number < 2**31:
            raise UsageError(f"number={self.number!r}: must be a whole number from 0 to 2147483647")
        if not isinstance(self.name, str) or not self.name or self.name.isdigit():
            raise UsageError(f"name={self.name!r}: must be a text that is not a number")

    @property
    def wire(self) -> str:
        """Its name on the wire."""
        return _NAMES.get(self.number, str(self.number))

    def type_of(self, kind: type) -> str:
        """Returns the name of a type on the wire."""
        return checked_type(kind.__name__ if self.type_name is None else self.type_name(kind))


def _decode_text(kind: type, payload: bytes) -> str:
    return (payload[:-1] if payload.endswith(b"\0") else payload).decode()


def _encode_protobuf(message: ProtobufMessage) -> bytes:
    try:
        return message.SerializeToString()
    except EncodeError as error:
        raise UsageError(str(error)) from None


def parsed(kind: type[_Message], payload: bytes) -> _Message:
    """A protobuf message out of its bytes.

    Raises:
        Malformed: They do not parse, or a required field is missing.
    """
    try:
        message = kind.FromString(payload)
    except DecodeError as error:
        raise Malformed(f"no {kind.DESCRIPTOR.full_name}: {error}: {shown(payload)}") from None
    if not message.IsInitialized():
        raise Malformed(f"no {kind.DESCRIPTOR.full_name}: a required field is missing: {shown(payload)}")
    return message


def _bson() -> Any:
    """pymongo's module, which only JSON messages need.

    Raises:
        ImportError: It is not there, or another package's module of that name is.
    """
    try:
        import bson

        return bson if hasattr(bson, "encode") else _no_bson()
    except ImportError:
        return _no_bson()


def _no_bson() -> NoReturn:
    raise missing_extra("the JSON scheme", ImportError(name="bson"), "goby")


def _encode_json(message: dict[str, Any]) -> bytes:
    bson = _bson()
    try:
        return bytes(bson.encode(message))
    except RecursionError:
        raise UsageError("a message cannot be encoded in BSON: it is nested too deep, or holds itself") from None
    except (bson.errors.BSONError, OverflowError, ValueError) as error:
        raise UsageError(f"a message cannot be encoded in BSON: {error}") from None


def _decode_json(kind: type, payload: bytes) -> dict[str, Any]:
    bson = _bson()
    try:
        found: dict[str, Any] = bson.decode(payload)
        return found
    except bson.errors.BSONError as error:
        raise Malformed(str(error)) from None


def _decode_own(scheme: Scheme, kind: type, payload: bytes) -> Any:
    """Decodes with the user's function; any error means that the payload does not parse."""
    try:
        return scheme.decode(kind, payload)
    except ValueError:
        raise
    except Exception as error:
        raise Malformed(f"{type(error).__name__}: {error}") from error


_BUILT_IN: Final = (
    Scheme(
        *(1, "PROTOBUF", lambda kind: issubclass(kind, ProtobufMessage), _encode_protobuf, parsed),
        lambda kind: str(kind.DESCRIPTOR.full_name),
    ),
    Scheme(
        *(0, "CSTR", lambda kind: issubclass(kind, str), lambda text: bytes(text.encode() + b"\0"), _decode_text),
        lambda kind: "CSTR",
    ),
    Scheme(
        *(7, "JSON", lambda kind: issubclass(kind, dict), _encode_json, _decode_json),
        lambda kind: "nlohmann::json",
    ),
)


@dataclass(frozen=True, slots=True)
class Codec:
    """The codec of messages of one Python type.

    Attributes:
        scheme: What the scheme is called on the wire.
        type: What the type is called there.
        encode: Makes a payload of a message.
        decode: Makes a message of a payload; raises `ValueError` if it cannot.
    """

    scheme: str
    type: str
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]


class Schemes:
    """The schemes that a portal knows: Goby's that Python can marshal, and one's own, which come first.

    Args:
        own: One's own.
    """

    def __init__(self, own: Iterable[Scheme] = ()) -> None:
        self._own: list[Scheme] = []
        for scheme in own:
            self.register(scheme)

    def register(self, scheme: Scheme) -> None:
        """Adds one.

        Raises:
            UsageError: Another one has its name or its number.
            TypeError: It is not a `Scheme`.
        """
        if not isinstance(scheme, Scheme):
            raise TypeError(f"a scheme must be an omq.goby.Scheme, not {type(scheme).__name__}")
        for other in self._own:
            if other.number == scheme.number or other.name == scheme.name:
                raise UsageError(f"scheme {scheme.name} ({scheme.number}): {other.name} ({other.number}) is there")
        if NUMBERS.get(scheme.name, scheme.number) != scheme.number:
            raise UsageError(f"scheme {scheme.name} ({scheme.number}): Goby calls {NUMBERS[scheme.name]} so")
        self._own.append(scheme)

    def wire_of(self, scheme: SchemeId) -> str:
        """Returns the name of a scheme on the wire.

        Args:
            scheme: Its name or its number.

        Raises:
            UsageError: No scheme has this name, or the number does not fit.
        """
        if isinstance(scheme, int) and not isinstance(scheme, bool) and 0 <= scheme < 2**31:
            return _NAMES.get(scheme, str(scheme))
        if isinstance(scheme, str):
            for one in self._own:
                if one.name == scheme:
                    return one.wire
            if scheme in NUMBERS:
                return scheme
            if scheme.isascii() and scheme.isdigit() and int(scheme) < 2**31:
                return _NAMES.get(int(scheme), str(int(scheme)))
        known = ", ".join([*NUMBERS, *(one.name for one in self._own)])
        raise UsageError(f"scheme={scheme!r}: must be a number from 0 to 2147483647, or one of {known}")

    def codec(self, kind: type, scheme: SchemeId | None = None, type_name: str | None = None) -> Codec:
        """Returns the codec of a type's messages.

        Args:
            kind: A protobuf class, `str`, `dict`, `bytes`, or a type that a scheme of one's own handles.
            scheme: A scheme's name or number; `None`: the first one that handles the type.
            type_name: What the type is called on the wire; `None`: as the scheme names it.

        Raises:
            UsageError: No scheme handles the type; or it is `bytes`, and the scheme or the name is missing.
            TypeError: *kind* is not a type.
            ImportError: JSON is meant, and pymongo is not installed.
        """
        if not isinstance(kind, type):
            raise TypeError(f"type={kind!r}: must be a protobuf class, str, dict or bytes")
        if issubclass(kind, bytes | bytearray | memoryview):
            if scheme is None or type_name is None:
                raise UsageError("bytes need scheme= and type_name=: they do not name their type")
            return Codec(self.wire_of(scheme), checked_type(type_name), bytes, bytes)
        wire = None if scheme is None else self.wire_of(scheme)
        for one in (*self._own, *_BUILT_IN):
            if wire in (None, one.wire) and one.handles(kind):
                name = one.type_of(kind) if type_name is None else checked_type(type_name)
                if one.encode is _encode_json:
                    _bson()  # report a missing pymongo now
                decode = one.decode if one in _BUILT_IN else partial(_decode_own, one)
                return Codec(one.wire, name, one.encode, partial(decode, kind))
        which = "no scheme handles" if wire is None else f"scheme {wire} does not handle"
        raise UsageError(f"{which} {kind.__qualname__}: register one, or give bytes with scheme= and type_name=")
