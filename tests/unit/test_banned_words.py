"""The words that no sentence of the project has: in docstrings, comments, texts of errors and pages."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: A pattern, and the words to take in its place.
BANNED = {
    r"nobody|no one|somebody|someone|whoever": "the noun: a peer, a consumer, the caller",
    r"he|him|himself|she|her": "the caller, the process",
    r"anew": "again",
    r"(?<!there )(?:is|are|was|were) none": "there is not any, none is left",
    r"done with": "finished",
    r"so (?:many|much)": "as many as, or a number",
    r"(?<!there )(?:is|are) no (?!longer|more)": "is not a valid, is not a",
    r"beside": "next to, compared with",
    r"says?|said|tells?|told|hears?|heard|minds": "sends, reports, logs, raises, returns",
    r"tombs?|entombs?|bur(?:y|ies|ied)|graveyards?": "remote ack, dead letter",
    r"possess\w*": "leader",
    r"patience|patient": "timeout",
    r"doors?": "listener",
    r"mean(?:s)? the world|what comes of it": "the result",
}
#: Lines that may have such a word, by a part of them, with the reason.
EXCEPTIONS = {
    "says RFC": "the RFC is a text",
    "as the heading of the table says": "a heading is a text",
    "as their persistence says": "a setting is a text",
    "as its options say": "options are texts",
    "as their RFCs say": "the RFCs are texts",
    "unless the text says": "a text",
    "tells users apart": "distinguishes",
    "be told apart": "be distinguished",
    "To tell a slow consumer from": "to distinguish",
    "| `Mail` |": "the table of renames has the old word",
}
WORDS = re.compile(rf"\b(?:{'|'.join(f'({words})' for words in BANNED)})\b", re.IGNORECASE)
#: Quotations, code, names in an f-string and words of a protocol are not sentences.
QUOTED = re.compile(r"`[^`]*`|\{[^{}]*\}|\bNone\b|\b[A-Z]{2,}\b")


def sentences(path: Path) -> Iterator[tuple[int, str]]:
    """Yields the lines of docstrings, comments and other texts of a file, with their numbers."""
    text = path.read_text()
    if path.suffix == ".md":
        fenced = False
        for number, line in enumerate(text.splitlines(), 1):
            fenced ^= line.lstrip().startswith("```")
            if not fenced:
                yield number, line
    elif path.suffix == ".py":
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type in (tokenize.STRING, tokenize.COMMENT) and " " in token.string:  # not a word of a protocol
                for number, line in enumerate(token.string.splitlines(), token.start[0]):
                    yield number, line
    else:  # Cython: its docstrings and comments
        inside = False
        for number, line in enumerate(text.splitlines(), 1):
            if inside or '"""' in line:
                yield number, line
                inside ^= line.count('"""') % 2 == 1
            elif "#" in line:
                yield number, line[line.index("#") :]


def banned(path: Path) -> Iterator[tuple[int, str, str]]:
    """Yields the lines with a banned word: their numbers, the word, and the words to take."""
    # Most files have only "is None". In lower case the search takes half the time.
    if re.search(WORDS.pattern, path.read_text().replace("None", "").lower()) is None:
        return
    for number, line in sentences(path):
        if any(part in line for part in EXCEPTIONS):
            continue
        for found in WORDS.finditer(QUOTED.sub("``", line)):
            place = next(at for at, text in enumerate(found.groups()) if text)
            yield number, found.group(), [*BANNED.values()][place]


def files() -> list[Path]:
    package = [path for end in ("py", "pyx", "pxd") for path in (ROOT / "omq").rglob(f"*.{end}")]
    programs = [path for root in ("bench", "docs/examples", "tests") for path in (ROOT / root).rglob("*.py")]
    roots = ("bench", "docs", "tests")
    pages = [path for root in roots for path in (ROOT / root).rglob("*.md") if path.name != "changelog.md"]
    found = {*package, *programs, *pages, ROOT / "README.md"} - {Path(__file__)}  # which quotes the words
    return sorted(path for path in found if not path.name.endswith("_pb2.py"))


def test_no_sentence_has_a_banned_word() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {word!r}: say {better}"
        for path in files()
        for number, word, better in banned(path)
    ]
    assert not found, f"{len(found)} lines\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('"""Nobody is there."""', ["Nobody"]),
        ("said = None  # what it told", ["told"]),
        ('raise ValueError("it is no topic")', ["is no "]),
        ('raise ValueError("there is no topic")', []),
        ('"""Sent no more: `he` is None, and there is no longer any."""', []),
        ("beside = he", []),
        ('told = f"it is {told!r} now"', []),
    ],
)
def test_a_banned_word_is_found_in_sentences_only(tmp_path: Path, source: str, found: list[str]) -> None:
    path = tmp_path / "module.py"
    path.write_text(source)
    assert [word for _, word, _ in banned(path)] == found


def test_code_of_a_page_is_not_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text("Told.\n```python\nbeside = told\n```\n`told`\n")
    assert [number for number, _, _ in banned(path)] == [1]
