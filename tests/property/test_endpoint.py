"""Endpoint texts of every kind: an endpoint or an EndpointError, nothing else."""

import contextlib

from hypothesis import example, given
from hypothesis import strategies as st

from omq.errors import EndpointError
from omq.transport import parse_endpoint
from tests.support.hypothesis_profiles import examples

#: Pieces that endpoints are made of, in any order, mixed with any text.
PIECES = st.one_of(
    st.sampled_from(["tcp", "ipc", "inproc", "://", "*", ":", ";", "@", "[", "]", "%", ".", "-", "0", "65535"]),
    st.sampled_from(["localhost", "127.0.0.1", "::1", "fe80::1%eth0", "xn--", "/tmp/", "\0", "é", "\udcff"]),
    st.text(st.characters(), max_size=8),
)
TAIL = st.lists(PIECES, max_size=8).map("".join)
TEXTS = st.one_of(
    st.text(st.characters()),
    TAIL,
    st.tuples(st.sampled_from(["tcp://", "ipc://", "inproc://"]), TAIL).map("".join),
)


@examples(300)
@given(TEXTS, st.booleans())
@example("tcp://" + "." * 100_000 + ":1", True)
@example("tcp://" + ":" * 100_000, False)
@example("ipc://" + "x" * 1_000_000, True)
@example("tcp://a:" + "1" * 100_000, False)
def test_any_text_is_an_endpoint_or_an_endpoint_error(text, bind):
    with contextlib.suppress(EndpointError):
        endpoint = parse_endpoint(text, bind=bind)
        assert parse_endpoint(str(endpoint), bind=bind) == endpoint


@given(st.one_of(st.none(), st.binary(), st.integers(), st.lists(st.text())), st.booleans())
def test_what_is_no_text_is_an_endpoint_error(value, bind):
    with contextlib.suppress(EndpointError):
        parse_endpoint(value, bind=bind)
        raise AssertionError(f"{value!r} was taken for an endpoint")


HOSTS = st.one_of(
    st.ip_addresses().map(str),
    st.from_regex(r"[a-z][a-z0-9]{0,20}(\.[a-z0-9]{1,20}){0,3}", fullmatch=True),
)


@given(HOSTS, st.integers(1, 65535), st.booleans())
def test_every_address_comes_out_as_it_went_in(host, port, bind):
    text = f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"
    endpoint = parse_endpoint(text, bind=bind)
    assert (endpoint.host, endpoint.port, endpoint.source) == (host, port, None)
    assert str(endpoint) == text
