"""An encoder and an incremental parser of S-expressions, compatible with OCaml's sexplib.

An atom is `bytes` of any values. `SexpParser` takes a stream in pieces of any size. It reads each byte once, keeps at
most four bytes of an incomplete token, and raises at the first invalid byte.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

from omq.broker.errors import SyntaxFault

#: A parsed expression: an atom or a list of expressions.
Expression: TypeAlias = "bytes | list[Expression]"
#: An expression that can be encoded.
Writable: TypeAlias = "bytes | Sequence[Writable]"

MAX_EXPRESSION_BYTES: Final = 64 << 10  # of one expression with its comments
MAX_DEPTH: Final = 64  # of nested lists

# ---------------------------------------------------------------------------------------------------------- writing

#: Atoms that must be quoted: empty ones, and those with special characters or with comment marks.
_QUOTED: Final = re.compile(rb'[^!-~]|["();\\]|#\||\|#|\A\Z')
#: Bytes that must be escaped between quotes.
_ESCAPED: Final = re.compile(rb'[^ -~]|["\\]')
_ESCAPES: Final = {byte: b"\\%03d" % byte for byte in range(256)} | {
    0x0A: b"\\n",
    0x22: b'\\"',
    0x5C: b"\\\\",
}


def _escape(match: re.Match[bytes]) -> bytes:
    return _ESCAPES[match.group()[0]]


def encode_atom(atom: bytes) -> bytes:
    """Encodes an atom, with quotes if it needs them."""
    if _QUOTED.search(atom) is None:
        return atom
    return b'"%b"' % _ESCAPED.sub(_escape, atom)


def encode(expression: Writable) -> bytes:
    """Encodes an expression on one line, with a space between neighbours unless both are lists."""
    if isinstance(expression, bytes):
        return encode_atom(expression)
    text = b""
    for at, item in enumerate(expression):
        if at and (isinstance(item, bytes) or isinstance(expression[at - 1], bytes)):
            text += b" "
        text += encode(item)
    return b"(%b)" % text


def shown(data: bytes, longest: int = 60) -> str:
    """Formats an atom for an error text: quoted if it needs that, and truncated to *longest* bytes."""
    text = encode_atom(data[:longest]).decode("ascii")
    return text if len(data) <= longest else f"{text}... ({len(data)} bytes)"


# ---------------------------------------------------------------------------------------------------------- reading

#: An escape between quotes. A backslash that does not begin one stands for itself.
_ESCAPE: Final = re.compile(rb"\\(?:([0-9]{3})|x([0-9a-fA-F]{2})|([\\'\"ntbr ])|(\r?\n))")
#: An incomplete escape.
_ESCAPE_START: Final = re.compile(rb"\\(?:[0-9]{0,2}|x[0-9a-fA-F]?|\r)\Z")
_NAMED: Final = {b"n": 10, b"t": 9, b"b": 8, b"r": 13, b"\\": 92, b"'": 39, b'"': 34, b" ": 32}

# The states of the parser.
_BETWEEN, _IN_ATOM, _IN_QUOTES, _CONTINUATION, _IN_LINE, _IN_COMMENT, _IN_COMMENT_QUOTES = range(7)
#: By state, the bytes that do not change it. sexplib accepts a carriage return only before a line feed; this parser
#: takes it as a blank anywhere.
_RUNS: Final = (
    re.compile(rb"[ \t\n\f\r]*"),
    re.compile(rb'[^ \t\n\f\r"();]*'),
    re.compile(rb'[^"\\]*'),
    re.compile(rb"[ \t]*"),
    re.compile(rb"[^\n\r]*"),
    re.compile(rb'[^#|"]*'),
    re.compile(rb'[^"\\]*'),
)

_QUOTE, _OPEN, _CLOSE, _SEMICOLON, _HASH, _PIPE, _BACKSLASH = b'"();#|\\'


class SexpParser:
    """An incremental parser of a stream of expressions.

    Args:
        max_length: The limit of one expression, or of a comment outside of expressions, in bytes.
        max_depth: The limit of nested lists.
    """

    __slots__ = (
        "_atom",
        "_comments",
        "_fault",
        "_items",
        "_length",
        "_lists",
        "_max_depth",
        "_max_length",
        "_skip",
        "_skips",
        "_state",
        "_undecided",
    )

    def __init__(self, *, max_length: int = MAX_EXPRESSION_BYTES, max_depth: int = MAX_DEPTH) -> None:
        self._max_length = max_length
        self._max_depth = max_depth
        self._state = _BETWEEN
        self._undecided = b""  # an incomplete token
        self._length = 0  # bytes of the current expression or comment in earlier pieces
        self._atom = bytearray()
        self._comments = 0  # the depth of nested block comments
        self._items: list[Expression] = []  # of the current list
        self._skip = 0  # expressions to skip next in the current list, after `#;`
        self._lists: list[list[Expression]] = []  # the enclosing lists
        self._skips: list[int] = []  # `_skip` of the enclosing lists
        self._fault: str | None = None

    @property
    def idle(self) -> bool:
        """Returns whether the parser is between expressions and outside of comments."""
        return self._state == _BETWEEN and not self._lists and not self._skip and not self._undecided

    def feed(self, data: bytes) -> Iterator[Expression]:
        """Parses the next bytes of the stream, and yields the expressions that they complete.

        The caller takes all expressions before it feeds more bytes.

        Raises:
            SyntaxFault: The bytes are not expressions. The expressions before the error were yielded; all further
                calls raise the same error.
        """
        if self._fault is not None:
            raise SyntaxFault(self._fault)
        try:
            yield from self._read(self._undecided + data if self._undecided else data)
        except SyntaxFault as fault:
            self._fault = str(fault)
            self._items, self._lists, self._atom, self._undecided = [], [], bytearray(), b""
            raise

    def _read(self, text: bytes) -> Iterator[Expression]:
        self._undecided = b""
        at = start = 0  # of the expression in this text; `_length` counts its bytes in earlier pieces
        while True:
            state = self._state
            run: re.Match[bytes] = _RUNS[state].match(text, at)  # type: ignore[assignment]
            at = run.end()
            if state in (_IN_ATOM, _IN_QUOTES):
                self._check(at - start)
                self._atom += run.group()
            elif state == _BETWEEN and not self._lists and not self._skip:
                start, self._length = at, 0
            self._check(at - start)
            if at == len(text):
                break
            consumed = _STEPS[state](self, text, at)
            if consumed is None:
                self._undecided = text[at:]
                break
            at += consumed
            self._check(at - start)
            if not self._lists and self._items:
                yield self._items.pop()
        self._length += at - start

    # One step a state, for the first byte after a run; returns the number of bytes consumed, `None` if it needs more.

    def _step_between(self, text: bytes, at: int) -> int | None:
        byte, following = text[at], text[at + 1 : at + 2]
        if byte == _OPEN:
            self._open()
        elif byte == _CLOSE:
            self._close()
        elif byte == _QUOTE:
            self._state = _IN_QUOTES
        elif byte == _SEMICOLON:
            self._state = _IN_LINE
        elif byte == _HASH and not following:
            return None
        elif byte == _HASH and following == b";":
            self._skip += 1
            return 2
        elif byte == _HASH and following == b"|":
            self._comments = 1
            self._state = _IN_COMMENT
            return 2
        else:
            self._state = _IN_ATOM
            return 0
        return 1

    def _step_in_atom(self, text: bytes, at: int) -> int | None:
        self._state = _BETWEEN
        if b"#|" in self._atom or b"|#" in self._atom:
            raise SyntaxFault("an atom with #| or |# must be quoted")
        self._add_atom()
        return 0

    def _step_in_quotes(self, text: bytes, at: int) -> int | None:
        if text[at] != _QUOTE:
            return self._take_escape(text, at)
        self._state = _BETWEEN
        self._add_atom()
        return 1

    def _step_continuation(self, text: bytes, at: int) -> int | None:
        self._state = _IN_QUOTES
        return 0

    def _step_in_line(self, text: bytes, at: int) -> int | None:
        self._state = _BETWEEN
        return 0

    def _step_in_comment(self, text: bytes, at: int) -> int | None:
        mark = text[at : at + 2]
        if mark[0] == _QUOTE:  # quotes contain no marks
            self._state = _IN_COMMENT_QUOTES
            return 1
        if len(mark) < 2:
            return None
        if mark not in (b"#|", b"|#"):
            return 1
        self._comments += 1 if mark == b"#|" else -1
        if not self._comments:
            self._state = _BETWEEN
        return 2

    def _step_in_comment_quotes(self, text: bytes, at: int) -> int | None:
        if text[at] != _QUOTE:
            return 2 if at + 1 < len(text) else None
        self._state = _IN_COMMENT
        return 1

    def _check(self, length: int) -> None:
        if self._length + length > self._max_length:
            raise SyntaxFault(f"an expression has at most {self._max_length} bytes")

    def _open(self) -> None:
        if len(self._lists) == self._max_depth:
            raise SyntaxFault(f"lists must not be nested deeper than {self._max_depth}")
        self._lists.append(self._items)
        self._skips.append(self._skip)
        self._items, self._skip = [], 0

    def _close(self) -> None:
        if not self._lists:
            raise SyntaxFault("unexpected closing parenthesis")
        if self._skip:
            raise SyntaxFault("#; must be followed by an expression in the same list")
        finished = self._items
        self._items, self._skip = self._lists.pop(), self._skips.pop()
        self._add(finished)

    def _add_atom(self) -> None:
        atom = bytes(self._atom)
        self._atom.clear()
        self._add(atom)

    def _add(self, expression: Expression) -> None:
        if self._skip:
            self._skip -= 1
        else:
            self._items.append(expression)

    def _take_escape(self, text: bytes, at: int) -> int | None:
        """Parses an escape; returns how many bytes it has consumed, or `None` if it needs more."""
        match = _ESCAPE.match(text, at)
        if match is None:
            if _ESCAPE_START.match(text, at) is not None:
                return None
            self._atom.append(_BACKSLASH)
            return 1
        decimal, hexadecimal, named, _ = match.groups()
        if decimal is not None:
            value = int(decimal)
            if value > 255:
                raise SyntaxFault(f"\\{value} is not a valid byte; the largest is \\255")
            self._atom.append(value)
        elif hexadecimal is not None:
            self._atom.append(int(hexadecimal, 16))
        elif named is not None:
            self._atom.append(_NAMED[named])
        else:
            self._state = _CONTINUATION
        return len(match.group())


_STEPS: Final = (
    SexpParser._step_between,
    SexpParser._step_in_atom,
    SexpParser._step_in_quotes,
    SexpParser._step_continuation,
    SexpParser._step_in_line,
    SexpParser._step_in_comment,
    SexpParser._step_in_comment_quotes,
)


def parse(text: bytes, *, max_length: int = MAX_EXPRESSION_BYTES, max_depth: int = MAX_DEPTH) -> Expression:
    """Parses a text that is one expression.

    Raises:
        SyntaxFault: The text is not exactly one expression.
    """
    parser = SexpParser(max_length=max_length, max_depth=max_depth)
    found = [*parser.feed(text), *parser.feed(b"\n")]
    if not parser.idle:
        raise SyntaxFault("the text ends within an expression or a comment")
    if len(found) != 1:
        raise SyntaxFault(f"one expression was expected, not {len(found)}")
    return found[0]
