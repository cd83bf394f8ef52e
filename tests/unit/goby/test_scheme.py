"""Marshalling: what Goby has names for, and schemes of one's own."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Any

import pytest

from omq.errors import UsageError
from omq.goby import Malformed, Scheme
from omq.goby.protobuf import HealthRequest, ManagerRequest, ProcessHealth
from omq.goby.scheme import Schemes

REQUEST = ManagerRequest(request=1, client_name="a", client_pid=1)


@dataclasses.dataclass
class Fix:
    lat: float
    lon: float


OWN = Scheme(
    450,
    "FIX",
    lambda kind: issubclass(kind, Fix),
    lambda fix: json.dumps(dataclasses.asdict(fix)).encode(),
    lambda kind, payload: kind(**json.loads(payload)),
)


@pytest.mark.parametrize(
    ("message", "scheme", "type_", "payload"),
    [
        ("msg0", "CSTR", "CSTR", b"msg0\0"),
        ("", "CSTR", "CSTR", b"\0"),
        ("ü\0x", "CSTR", "CSTR", "ü\0x\0".encode()),
        ({}, "JSON", "nlohmann::json", b"\x05\0\0\0\0"),
        ({"a": 1}, "JSON", "nlohmann::json", b"\x0c\0\0\0\x10a\0\x01\0\0\0\0"),
        (REQUEST, "PROTOBUF", "goby.zeromq.protobuf.ManagerRequest", REQUEST.SerializeToString()),
    ],
)
def test_what_goby_has_a_name_for(message: Any, scheme: str, type_: str, payload: bytes) -> None:
    codec = Schemes().codec(type(message))
    assert (codec.scheme, codec.type) == (scheme, type_)
    assert codec.encode(message) == payload
    assert codec.decode(payload) == message


@pytest.mark.parametrize("module", [None, object()], ids=["none", "another one of that name"])
def test_without_pymongo_it_is_named(monkeypatch: pytest.MonkeyPatch, module: object) -> None:
    monkeypatch.setitem(sys.modules, "bson", module)
    with pytest.raises(ImportError, match=r"omq-zmtp\[goby\]"):
        Schemes().codec(dict)
    Schemes().codec(str)


def test_json_keeps_what_json_has() -> None:
    codec = Schemes().codec(dict)
    message = {"n": None, "t": True, "i": 2**40, "f": 1.5, "s": "ü", "l": [1, {"x": []}], "d": {"y": {}}}
    assert codec.decode(codec.encode(message)) == message


def test_text_without_its_nul_is_taken() -> None:
    assert Schemes().codec(str).decode(b"msg0") == "msg0"
    assert Schemes().codec(str).decode(b"") == ""


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (str, b"\xff\0"),
        (dict, b""),
        (dict, b"\x0c\0\0\0garbage"),
        (ManagerRequest, b"garbage"),
        (ManagerRequest, b""),  # required fields are missing
        (ProcessHealth, ManagerRequest(request=1, client_name="a", client_pid=1).SerializeToString()[:4]),
    ],
)
def test_a_payload_that_does_not_parse_is_a_value_error(kind: type, payload: bytes) -> None:
    with pytest.raises(ValueError):
        Schemes().codec(kind).decode(payload)


@pytest.mark.parametrize("message", [{1: 2}, {"a": object()}, {"a": 2**70}, {"a\0b": 1}, ManagerRequest(request=1)])
def test_a_message_that_cannot_be_encoded_is_a_usage_error(message: Any) -> None:
    with pytest.raises(UsageError):
        Schemes().codec(type(message)).encode(message)


def test_bytes_need_a_scheme_and_a_name() -> None:
    schemes = Schemes()
    codec = schemes.codec(bytes, "DCCL", "Report")
    assert (codec.scheme, codec.type, codec.encode(b"x"), codec.decode(b"y")) == ("DCCL", "Report", b"x", b"y")
    assert schemes.codec(bytes, 2, "Report").scheme == "DCCL"
    assert schemes.codec(bytes, 99, "Report").scheme == "99"
    assert schemes.codec(bytes, "99", "Report").scheme == "99"
    for given in ({}, {"scheme": "DCCL"}, {"type_name": "Report"}):
        with pytest.raises(UsageError, match="scheme= and type_name="):
            schemes.codec(bytes, **given)
    with pytest.raises(UsageError, match="type"):
        schemes.codec(bytes, "DCCL", "a/b")


@pytest.mark.parametrize("scheme", ["NONE", -2, True, 1.5, "", "-1"])
def test_an_invalid_scheme_is_named(scheme: Any) -> None:
    with pytest.raises(UsageError, match="scheme="):
        Schemes().codec(bytes, scheme, "Report")


@pytest.mark.parametrize("kind", [int, list, object])
def test_a_type_without_a_scheme_is_named(kind: type) -> None:
    with pytest.raises(UsageError, match=kind.__name__):
        Schemes().codec(kind)
    with pytest.raises(UsageError, match="DCCL does not handle"):
        Schemes().codec(HealthRequest, "DCCL")
    with pytest.raises(TypeError, match="type="):
        Schemes().codec("Report")  # type: ignore[arg-type]


def test_schemes_of_ones_own() -> None:
    schemes = Schemes([OWN])
    codec = schemes.codec(Fix)
    assert (codec.scheme, codec.type) == ("450", "Fix")
    assert codec.decode(codec.encode(Fix(1.0, 2.0))) == Fix(1.0, 2.0)
    assert schemes.codec(Fix, "FIX").scheme == schemes.codec(Fix, 450).scheme == "450"
    assert schemes.wire_name("FIX") == "450"
    for payload in (b"{", b"[1]", b'{"speed": 1}'):
        with pytest.raises(ValueError):
            codec.decode(payload)
    with pytest.raises(UsageError, match="is registered"):
        schemes.register(dataclasses.replace(OWN, name="OTHER"))
    with pytest.raises(UsageError, match="Goby has this name for"):
        schemes.register(dataclasses.replace(OWN, name="DCCL", number=451))
    with pytest.raises(TypeError):
        schemes.register("FIX")  # type: ignore[arg-type]


def test_a_scheme_of_ones_own_may_be_one_of_gobys() -> None:
    schemes = Schemes([dataclasses.replace(OWN, name="DCCL", number=2)])
    assert schemes.codec(Fix, "DCCL").scheme == "DCCL"


@pytest.mark.parametrize("given", [{"number": -1}, {"number": 2**31}, {"number": "1"}, {"name": ""}, {"name": "7"}])
def test_a_scheme_that_does_not_fit_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        dataclasses.replace(OWN, **given)


def test_malformed_is_a_value_error() -> None:
    assert issubclass(Malformed, ValueError)
