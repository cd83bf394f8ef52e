"""Encoding and parsing of S-expressions, byte for byte."""

import pytest

from omq.broker.errors import SyntaxFault
from omq.broker.sexp.syntax import MAX_EXPRESSION_BYTES, SexpParser, encode, parse, shown

WRITTEN = [
    (b"prices", b"prices"),
    (b"", b'""'),
    (b"my topic", b'"my topic"'),
    (b'a"b', b'"a\\"b"'),
    (b"a(b", b'"a(b"'),
    (b"a)b", b'"a)b"'),
    (b"a;b", b'"a;b"'),
    (b"a\\b", b'"a\\\\b"'),
    (b"a\nb", b'"a\\nb"'),
    (b"a\tb", b'"a\\009b"'),
    (b"\x00\x7f", b'"\\000\\127"'),
    ("ä".encode(), b'"\\195\\164"'),
    (b"a#|b", b'"a#|b"'),
    (b"a|#b", b'"a|#b"'),
    (b"#;a", b'"#;a"'),
    (b"a#b|c", b"a#b|c"),
    ([], b"()"),
    ([b"Connect", b"1", b"client-7"], b"(Connect 1 client-7)"),
    ([b"Subscribe", b"my topic", [b"From_message", b"42"]], b'(Subscribe "my topic" (From_message 42))'),
    ([[b"id", b"3"], [b"topic", b"prices"]], b"((id 3)(topic prices))"),
    ([[[b"a"]], b"b", [[], []], b"c"], b"(((a)) b (()()) c)"),
]

READ = [
    (b'"\\116\\x41\\x4a"', b"tAJ"),
    (b'"\\t\\r\\b\\\'\\ \\\\\\""', b"\t\r\b' \\\""),
    (b'"\\q\\9z\\x4z"', b"\\q\\9z\\x4z"),
    (b'"a\\\n   b"', b"ab"),
    (b'"a\\\r\n\t b"', b"ab"),
    (b'"a\nb"', b"a\nb"),
    (b'"\\\r"', b"\\\r"),
    ("ä".encode(), "ä".encode()),
    (b"a\\b", b"a\\b"),
    (b'(a"b"c)', [b"a", b"b", b"c"]),
    (b'(a(b)"c"(d))', [b"a", [b"b"], b"c", [b"d"]]),
    (b"; x (\n a", b"a"),
    (b"#| x #| y |# ) |# a", b"a"),
    (b'#| "|#" |# a', b"a"),
    (b"#; (x y) a", b"a"),
    (b"(a #; b c)", [b"a", b"c"]),
    (b"#; #; a b c", b"c"),
    (b"(a #; #| c |# b)", [b"a"]),
    (b"\r\n\f\t (a\r\nb)\r\n", [b"a", b"b"]),
    (b"# ", b"#"),
    (b"##", b"##"),
    (b"a#;b", b"a#"),
    (b"|", b"|"),
]

FAULTS = [
    (b")", "unexpected closing"),
    (b"(a))", "unexpected closing"),
    (b"(a", "ends within"),
    (b'"a', "ends within"),
    (b"#| a", "ends within"),
    (b"#; ", "ends within"),
    (b"(a #;)", "must be followed"),
    (b"a#|b|#", "must be quoted"),
    (b"a|#", "must be quoted"),
    (b"|#", "must be quoted"),
    (b'"\\256"', "not a valid byte"),
    (b'"\\999"', "not a valid byte"),
    (b"", "one expression"),
    (b"a b", "one expression"),
    (b"a" * (MAX_EXPRESSION_BYTES + 1), "at most 65536 bytes"),
    (b"(" + b" " * MAX_EXPRESSION_BYTES + b")", "at most 65536 bytes"),
    (b";" + b"a" * MAX_EXPRESSION_BYTES, "at most 65536 bytes"),
    (b"#|" + b"a" * MAX_EXPRESSION_BYTES, "at most 65536 bytes"),
]


@pytest.mark.parametrize(("expression", "text"), WRITTEN, ids=repr)
def test_written(expression, text):
    assert encode(expression) == text
    assert parse(text) == expression


@pytest.mark.parametrize(("text", "expression"), READ, ids=repr)
def test_read(text, expression):
    assert parse(text) == expression


@pytest.mark.parametrize(("text", "fault"), FAULTS, ids=[repr(text[:12]) for text, _ in FAULTS])
def test_faults(text, fault):
    with pytest.raises(SyntaxFault, match=fault):
        parse(text)


def test_the_longest_expression_is_read():
    assert parse(b'"' + b"a" * (MAX_EXPRESSION_BYTES - 2) + b'"') == b"a" * (MAX_EXPRESSION_BYTES - 2)
    assert parse(b" " * 100_000 + b"(a)") == [b"a"]


def test_expressions_before_an_error_are_yielded():
    reader = SexpParser()
    expressions = reader.feed(b"(a) (b) ) (c)")
    assert [next(expressions), next(expressions)] == [[b"a"], [b"b"]]
    with pytest.raises(SyntaxFault):
        next(expressions)
    with pytest.raises(SyntaxFault):
        next(reader.feed(b"(d)"))


def test_an_atom_ends_with_what_follows():
    reader = SexpParser()
    assert list(reader.feed(b"ab")) == []
    assert list(reader.feed(b"c")) == []
    assert list(reader.feed(b" ")) == [b"abc"]
    assert reader.idle


def test_shown_is_short():
    assert shown(b"a" * 10_000) == "a" * 60 + "... (10000 bytes)"
    assert shown(b"a\nb") == '"a\\nb"'
