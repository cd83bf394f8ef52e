"""The socket types, and who may talk to whom."""

import dataclasses
import itertools

import pytest

from omq.options import Options
from omq.types import COMPATIBLE, ONE_CONNECTION, SENDS_IDENTITY, TRAITS, SocketType

TYPES = """
    PAIR PUB SUB REQ REP DEALER ROUTER PULL PUSH XPUB XSUB STREAM
    SERVER CLIENT RADIO DISH GATHER SCATTER PEER CHANNEL
"""

#: RFC 28, 29, 30, 31, 41, 48, 49, 51 and 52.
PAIRS = """
    PAIR-PAIR PUB-SUB PUB-XSUB XPUB-SUB XPUB-XSUB REQ-REP REQ-ROUTER REP-DEALER DEALER-DEALER DEALER-ROUTER
    ROUTER-ROUTER PUSH-PULL SERVER-CLIENT RADIO-DISH GATHER-SCATTER PEER-PEER CHANNEL-CHANNEL
"""
MAY_TALK = {frozenset(pair.split("-")) for pair in PAIRS.split()}


def test_all_types_are_there_by_their_wire_names() -> None:
    assert [kind.value for kind in SocketType] == [kind.name for kind in SocketType]
    assert {kind.value for kind in SocketType} == set(TYPES.split())


def test_every_type_has_its_row() -> None:
    assert list(TRAITS) == list(SocketType)
    assert set(COMPATIBLE) == set(SocketType)


@pytest.mark.parametrize("kind", SocketType)
def test_a_row_names_options_that_there_are(kind: SocketType) -> None:
    assert TRAITS[kind].options <= {field.name for field in dataclasses.fields(Options)}


@pytest.mark.parametrize("one", SocketType)
def test_compatibility_is_mutual(one: SocketType) -> None:
    for other in COMPATIBLE[one]:
        assert one in COMPATIBLE[other], f"{one.value} takes {other.value}, but not the other way round"


@pytest.mark.parametrize(("one", "other"), [*itertools.combinations_with_replacement(SocketType, 2)])
def test_compatibility_is_that_of_the_rfcs(one: SocketType, other: SocketType) -> None:
    assert (other in COMPATIBLE[one]) == (frozenset({one.value, other.value}) in MAY_TALK)


def test_stream_handshakes_with_no_type() -> None:
    assert [kind for kind in SocketType if not TRAITS[kind].handshakes] == [SocketType.STREAM]
    assert COMPATIBLE[SocketType.STREAM] == frozenset()


def test_types_that_name_themselves() -> None:
    assert {kind.value for kind in SENDS_IDENTITY} == {"REQ", "DEALER", "ROUTER"}


def test_types_whose_messages_have_one_part() -> None:
    """RFC 41, 48, 49, 51 and 52; before a part of RADIO's stands its group."""
    single = {kind.value for kind in SocketType if TRAITS[kind].single_part}
    assert single == {"CLIENT", "SERVER", "RADIO", "DISH", "GATHER", "SCATTER", "PEER", "CHANNEL"}
    assert {kind.value for kind in SocketType if TRAITS[kind].envelope} == {"RADIO", "DISH"}


def test_types_that_address_a_message() -> None:
    routes = {kind.value: TRAITS[kind].route.value for kind in SocketType if TRAITS[kind].route}
    assert routes == {"SERVER": "routing_id", "PEER": "routing_id", "RADIO": "group"}


def test_types_that_connect_to_a_place_once() -> None:
    assert {kind.value for kind in ONE_CONNECTION} == {"DEALER", "SUB", "PUB", "REQ"}


def test_an_unknown_wire_name_is_no_type() -> None:
    with pytest.raises(ValueError, match="PUSHY"):
        SocketType("PUSHY")
