"""S-expressions by a grammar of their own: every way to write one reads as the same, however the bytes are cut."""

import time

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from omq.broker.errors import SyntaxFault
from omq.broker.sexp.syntax import MAX_DEPTH, SexpParser, encode, parse
from tests.support.hypothesis_profiles import examples

ATOMS = st.one_of(
    st.binary(max_size=12),
    st.text(max_size=8).map(str.encode),
    st.sampled_from(
        [b"", b"a", b"prices", b"#", b"|", b"#;", b"#|", b"|#", b";", b"\\", b'"', b"\r\n", b"From_current"]
    ),
)
EXPRESSIONS = st.recursive(ATOMS, lambda inner: st.lists(inner, max_size=4), max_leaves=12)


def fits_bare(atom: bytes) -> bool:
    """Returns whether an atom can stand without quotes: blanks, quotes, parentheses and semicolons end it."""
    return bool(atom) and not set(atom) & set(b' \t\n\f\r"();') and b"#|" not in atom and b"|#" not in atom


@st.composite
def quoted(draw, atom: bytes) -> bytes:
    """An atom between quotes, each byte in one of the ways in which it can be written."""
    out = bytearray(b'"')
    names = {10: b"n", 9: b"t", 13: b"r", 8: b"b", 92: b"\\", 34: b'"', 39: b"'", 32: b" "}
    for at, byte in enumerate(atom):
        ways = [b"\\%03d" % byte, b"\\x%02x" % byte, b"\\x%02X" % byte]
        if byte in names:
            ways.append(b"\\" + names[byte])
        if byte not in b'\\"':
            ways.append(bytes([byte]))
        if byte == 92 and at + 1 < len(atom) and atom[at + 1] in b"qz.-(;|#":
            ways.append(b"\\")  # what is not an escape stays as it is
        way = draw(st.sampled_from(ways))
        if draw(st.integers(0, 15)) == 0 and byte not in b" \t" and out[-1:] != b"\\":
            out += draw(st.sampled_from([b"\\\n", b"\\\r\n  \t", b"\\\n "]))
            way = b"\\%03d" % byte
        out += way
    return bytes(out) + b'"'


@st.composite
def comments(draw, inner=True) -> bytes:
    """Draws text between expressions that means nothing."""
    kind = draw(st.integers(0, 9))
    if kind < 6:
        return draw(st.sampled_from([b" ", b"\n", b"\t", b"  ", b"\r\n", b"\f"]))
    if kind == 6:
        return b";" + draw(st.binary(max_size=8)).replace(b"\n", b"").replace(b"\r", b"") + b"\n"
    if kind == 7:
        return draw(
            st.sampled_from([b"#||#", b"#| a ( |#", b"#| #| x |# y |#", b'#|"|#"|#', b"#|#|#|||#|#|#", b"#|\\|#"])
        )
    if kind == 8:
        return draw(st.sampled_from([b"#;a ", b"#;(a b)", b'#; "x" ', b"#;#;a b ", b"#;(#;x y)", b"#; #|c|# z "]))
    return draw(comments()) + draw(comments())


@st.composite
def written(draw, expression) -> bytes:
    """One of the ways to write an expression."""
    if isinstance(expression, bytes):
        ways = [quoted(expression)]
        if fits_bare(expression) and not expression.startswith((b"#;", b"#")):
            ways.append(st.just(expression))
        return draw(st.one_of(ways))
    out = bytearray(b"(")
    last = b""
    for item in expression:
        text = draw(written(item))
        gap = draw(st.booleans())
        if gap or (last and last[-1:] not in b'")' and text[:1] not in b'"('):
            # A blank before and after: marks of comments and atoms grow together where they touch.
            out += b" " + draw(comments()) + b" "
        out += text
        last = text
    # What is skipped belongs to the list, and `#;` needs something to skip: that is within the comment.
    return bytes(out) + (b" " + draw(comments()) if draw(st.booleans()) else b"") + b")"


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    """The pieces of *data* between *cuts*."""
    places = sorted({place % (len(data) + 1) for place in cuts})
    return [data[start:end] for start, end in zip([0, *places], [*places, len(data)], strict=True)]


def read(pieces, **limits) -> tuple[list, bool]:
    """Returns the expressions that a reader finds in pieces of a stream, and whether it found an error."""
    reader = SexpParser(**limits)
    found: list = []
    try:
        for piece in pieces:
            for expression in reader.feed(piece):
                found.append(expression)  # noqa: PERF402 (what came before a fault counts)
    except SyntaxFault:
        return found, True
    return found, False


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(EXPRESSIONS)
@example([b"a", [b"b", []], [[]], b""])
def test_what_is_written_reads_as_the_same(expression):
    text = encode(expression)
    assert parse(text) == expression
    assert b"\n" not in text
    assert text.isascii()


@examples(60, suppress_health_check=[HealthCheck.too_slow])
@given(EXPRESSIONS.flatmap(lambda one: st.tuples(st.just(one), written(one))))
def test_every_way_to_write_it_reads_as_the_same(pair):
    expression, text = pair
    assert parse(text) == expression


@examples(40, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(EXPRESSIONS.flatmap(lambda one: st.tuples(st.just(one), written(one))), max_size=4),
    st.lists(st.integers(0, 10_000), max_size=20),
)
def test_a_stream_reads_the_same_however_it_is_cut(pairs, cuts):
    text = b"\n".join(text for _, text in pairs) + b"\n"
    assert read(cut(text, cuts)) == ([expression for expression, _ in pairs], False)
    assert read(bytes([byte]) for byte in text) == ([expression for expression, _ in pairs], False)


PIECES = st.one_of(
    st.sampled_from(
        [b"(", b")", b'"', b"\\", b"#", b"|", b";", b"\n", b"\r", b" ", b"a", b"\\0", b"9", b"\\x", b"f", b"#;"]
    ),
    st.binary(max_size=3),
)


@examples(150, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(PIECES, max_size=30).map(b"".join), st.lists(st.integers(0, 100), max_size=5))
def test_any_bytes_are_expressions_or_the_one_fault(text, cuts):
    whole = read([text])
    assert read(cut(text, cuts)) == whole
    assert read(bytes([byte]) for byte in text) == whole


@pytest.mark.parametrize(
    "unit",
    [
        *(b"(", b"a", b'"a', b"#|", b"#;", b";", b"\\1", b'#| "'),
        *(
            pytest.param(unit, marks=pytest.mark.slow)
            for unit in (b'"', b"\\", b"#", b"|#", b" ", b"()", b'"\\', b"(\n", b"\r")
        ),
    ],
)
def test_endless_input_costs_no_more_than_its_length(unit):
    text = unit * (100_000 // len(unit))
    began = time.perf_counter()
    for limits in ({}, {"max_length": 1 << 30, "max_depth": 1 << 30}):
        read([text], **limits)
        read((text[at : at + 7] for at in range(0, len(text), 7)), **limits)
    assert time.perf_counter() - began < 10.0, "a reader that looks at a byte again and again takes minutes"


def test_depth_is_bounded():
    assert parse(b"(" * MAX_DEPTH + b")" * MAX_DEPTH)
    with pytest.raises(SyntaxFault, match="nested deeper than"):
        parse(b"(" * (MAX_DEPTH + 1) + b")" * (MAX_DEPTH + 1))
