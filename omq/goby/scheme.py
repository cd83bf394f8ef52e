"""Marshalling schemes: the encoding of messages as payloads, and the names of their types on the wire."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from google.protobuf.message import DecodeError, EncodeError
from google.protobuf.message import Message as ProtobufMessage

from omq.errors import UsageError
from omq.goby.errors import Malformed
from omq.goby.identifier import checked_type, shown
from omq.serving.extras import missing_extra

#: The schemes with a name on the wire (`goby::middleware::MarshallingScheme`); others have their number there.
NUMBERS: Final = {"CSTR": 0, "PROTOBUF": 1, "DCCL": 2, "CXX_OBJECT": 5, "MAVLINK": 6, "JSON": 7}
_NAMES: Final = {number: name for name, number in NUMBERS.items()}

SchemeId = str | int
_Message = TypeVar("_Message", bound=ProtobufMessage)


@dataclass(frozen=True)
class Scheme:
    """A custom marshalling scheme.

    Args:
        number: Its number, from 0 to 2147483647. It is on the wire, unless Goby has a name for it.
        name: Its name in this program, by which `scheme=` selects it; not only digits.
        handles: A function of a type: returns whether the scheme can marshal the type's messages.
        encode: A function of a message: returns its payload as `bytes`.
        decode: A function of a type and a payload: returns the message. Any exception means that the payload does not
            parse.
        type_name: A function of a type: returns its name on the wire; `None`: its `__name__`.

    Raises:
        UsageError: The number or the name is not valid.
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
            raise UsageError(f"name={self.name!r}: must be a string that is not a number")

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


def parse_protobuf(kind: type[_Message], payload: bytes) -> _Message:
    """Parses a protobuf message.

    Raises:
        Malformed: The payload does not parse, or a required field is missing.
    """
    try:
        message = kind.FromString(payload)
    except DecodeError as error:
        raise Malformed(f"not a valid {kind.DESCRIPTOR.full_name}: {error}: {shown(payload)}") from None
    if not message.IsInitialized():
        raise Malformed(f"not a valid {kind.DESCRIPTOR.full_name}: a required field is missing: {shown(payload)}")
    return message


def _bson() -> Any:
    """Returns pymongo's module, which only JSON messages need.

    Raises:
        ImportError: pymongo is not installed, or another package has a module of that name.
    """
    with suppress(ImportError):
        import bson

        if hasattr(bson, "encode"):
            return bson
    raise missing_extra("the JSON scheme", ImportError(name="bson"), "goby")


def _encode_json(message: dict[str, Any]) -> bytes:
    bson = _bson()
    try:
        return bytes(bson.encode(message))
    except RecursionError:
        raise UsageError("a message cannot be encoded in BSON: it is nested too deeply, or contains itself") from None
    except (bson.errors.BSONError, OverflowError, ValueError) as error:
        raise UsageError(f"a message cannot be encoded in BSON: {error}") from None


def _decode_json(kind: type, payload: bytes) -> dict[str, Any]:
    bson = _bson()
    try:
        message: dict[str, Any] = bson.decode(payload)
        return message
    except bson.errors.BSONError as error:
        raise Malformed(str(error)) from None


def _decode_custom(scheme: Scheme, kind: type, payload: bytes) -> Any:
    """Decodes with the function of a custom scheme; any exception means that the payload does not parse."""
    try:
        return scheme.decode(kind, payload)
    except ValueError:
        raise
    except Exception as error:
        raise Malformed(f"{type(error).__name__}: {error}") from error


_BUILT_IN: Final = (
    Scheme(
        *(1, "PROTOBUF", lambda kind: issubclass(kind, ProtobufMessage), _encode_protobuf, parse_protobuf),
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
        scheme: The scheme's name on the wire.
        type: The type's name on the wire.
        encode: Encodes a message as a payload.
        decode: Decodes a payload; raises `ValueError` if it does not parse.
    """

    scheme: str
    type: str
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]


class Schemes:
    """The schemes of a portal: the custom ones, which come first, and Goby's that Python can marshal.

    Args:
        custom: The custom schemes.

    Raises:
        UsageError: Two schemes have one name or one number.
        TypeError: *custom* is not iterable, or an item is not a `Scheme`.
    """

    def __init__(self, custom: Iterable[Scheme] = ()) -> None:
        if isinstance(custom, str | bytes) or not isinstance(custom, Iterable):
            raise TypeError(f"schemes={custom!r:.80}: must be a list of omq.goby.Scheme, not {type(custom).__name__}")
        self._custom: list[Scheme] = []
        for scheme in custom:
            self.register(scheme)

    def register(self, scheme: Scheme) -> None:
        """Adds a custom scheme.

        Raises:
            UsageError: Another scheme has its name or its number.
            TypeError: *scheme* is not a `Scheme`.
        """
        if not isinstance(scheme, Scheme):
            raise TypeError(f"a scheme must be an omq.goby.Scheme, not {type(scheme).__name__}")
        for other in self._custom:
            if other.number == scheme.number or other.name == scheme.name:
                raise UsageError(f"scheme {scheme.name} ({scheme.number}): {other.name} ({other.number}) is registered")
        if NUMBERS.get(scheme.name, scheme.number) != scheme.number:
            raise UsageError(f"scheme {scheme.name} ({scheme.number}): Goby has this name for {NUMBERS[scheme.name]}")
        self._custom.append(scheme)

    def wire_name(self, scheme: SchemeId) -> str:
        """Returns the name of a scheme on the wire.

        Args:
            scheme: Its name or its number.

        Raises:
            UsageError: No scheme has this name, or the number is not valid.
        """
        if isinstance(scheme, int) and not isinstance(scheme, bool) and 0 <= scheme < 2**31:
            return _NAMES.get(scheme, str(scheme))
        if isinstance(scheme, str):
            for custom in self._custom:
                if custom.name == scheme:
                    return custom.wire
            if scheme in NUMBERS:
                return scheme
            if scheme.isascii() and scheme.isdigit() and int(scheme) < 2**31:
                return _NAMES.get(int(scheme), str(int(scheme)))
        known = ", ".join([*NUMBERS, *(custom.name for custom in self._custom)])
        raise UsageError(f"scheme={scheme!r}: must be a number from 0 to 2147483647, or one of {known}")

    def codec(self, kind: type, scheme: SchemeId | None = None, type_name: str | None = None) -> Codec:
        """Returns the codec of a type's messages.

        Args:
            kind: A protobuf class, `str`, `dict`, `bytes`, or a type that a custom scheme handles.
            scheme: A scheme's name or number; `None`: the first scheme that handles the type.
            type_name: The type's name on the wire; `None`: the name that the scheme uses.

        Raises:
            UsageError: No scheme handles the type, the scheme is unknown, or the type name is not valid; or *kind* is
                `bytes`, and *scheme* or *type_name* is missing.
            TypeError: *kind* is not a type, or the type name is not a `str`.
            ImportError: The scheme is JSON, and pymongo is not installed.
        """
        if not isinstance(kind, type):
            raise TypeError(f"type={kind!r}: must be a protobuf class, str, dict or bytes")
        if issubclass(kind, bytes | bytearray | memoryview):
            if scheme is None or type_name is None:
                raise UsageError("bytes need scheme= and type_name=: they do not name their type")
            return Codec(self.wire_name(scheme), checked_type(type_name), bytes, bytes)
        wire = None if scheme is None else self.wire_name(scheme)
        for found in (*self._custom, *_BUILT_IN):
            if wire in (None, found.wire) and found.handles(kind):
                name = found.type_of(kind) if type_name is None else checked_type(type_name)
                if found.encode is _encode_json:
                    _bson()  # report a missing pymongo now
                decode = found.decode if found in _BUILT_IN else partial(_decode_custom, found)
                return Codec(found.wire, name, found.encode, partial(decode, kind))
        which = "no scheme handles" if wire is None else f"scheme {wire} does not handle"
        raise UsageError(f"{which} {kind.__qualname__}: register a scheme, or pass bytes with scheme= and type_name=")
