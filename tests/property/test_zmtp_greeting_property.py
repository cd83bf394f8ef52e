import re
from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from omq.errors import RemoteProtocolError
from omq.zmtp.greeting import GREETING_BYTES, Greeting, GreetingParser
from tests.support.hypothesis_profiles import examples

names = st.text("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.+", min_size=1, max_size=20).map(str.encode)
greetings = st.builds(Greeting, st.tuples(st.integers(3, 255), st.integers(0, 255)), names, st.booleans())

# The grammar of RFC 23 as one expression; the parser is not written from it. As in libzmq as-server may be any octet.
GRAMMAR = re.compile(
    rb"\xff.{8}\x7f[\x03-\xff].(?=[^\0])(?=([A-Z0-9_.+-]+\0*).{32}\Z)[A-Z0-9_.+\0-]{20}.{32}",
    re.DOTALL,
)


def chunked(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


def parse(chunks: list[bytes]) -> tuple[Greeting | None, bytes] | str:
    parser = GreetingParser()
    greeting, rest = None, b""
    for chunk in chunks:
        if greeting is not None:
            rest += chunk
            continue
        try:
            greeting = parser.feed(chunk)
        except RemoteProtocolError as error:
            return str(error)
    return greeting, parser.unread + rest


@examples(50)
@given(greetings, st.binary(max_size=20), st.lists(st.integers(0, 100), max_size=8))
def test_every_greeting_comes_back_however_it_is_cut(greeting, rest, cuts):
    wire = greeting.encode()
    assert len(wire) == GREETING_BYTES
    assert GRAMMAR.fullmatch(wire)
    assert parse(chunked(wire + rest, cuts)) == (greeting, rest)


@examples(100)
@given(greetings, st.lists(st.tuples(st.integers(0, 63), st.integers(0, 255)), min_size=1, max_size=3))
@example(Greeting((3, 1), b"NULL", False), [(13, 0)])
@example(Greeting((3, 1), b"A" * 20, False), [(12, 0)])
def test_a_changed_greeting_is_accepted_exactly_when_the_grammar_accepts_it(greeting, changes):
    wire = bytearray(greeting.encode())
    for at, octet in changes:
        wire[at] = octet
    outcome = parse([bytes(wire)])
    assert isinstance(outcome, tuple) == bool(GRAMMAR.fullmatch(wire))
    if isinstance(outcome, tuple):
        assert outcome[0] is not None


@examples(75)
@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=8))
def test_garbage_is_refused_alike_however_it_is_cut(data, cuts):
    assert parse(chunked(data, cuts)) == parse([data])
