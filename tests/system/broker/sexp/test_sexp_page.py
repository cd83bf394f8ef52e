"""The server sends the bytes on the protocol's page, and the page's program runs."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.broker.sexp.sexp_server import Peer, ServerThread

PAGE = Path(__file__).parents[4] / "docs" / "reference" / "sexp-protocol.md"
PROGRAM, PRINTED, *TALKS = re.findall(r"^```\w+\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
TOKEN = re.compile(r'[0-9a-f]{2}(?= |$)|"(?:[^"\\]|\\.)*"|\s+')


def read(text: str) -> bytes:
    """Returns the bytes of a line, which is hexadecimal digits and quoted text, or a command."""
    if text.startswith("("):
        return text.encode() + b"\n"
    tokens = TOKEN.findall(text)
    assert "".join(tokens) == text
    return b"".join(
        ast.literal_eval(f"b{token}") if token.startswith('"') else bytes.fromhex(token) for token in tokens
    )


def test_there_are_talks():
    assert len(TALKS) == 3


@pytest.mark.parametrize("talk", TALKS, ids=[talk.splitlines()[0] for talk in TALKS])
def test_a_talk(talk):
    with ServerThread() as running:
        assert running.create("prices") == 1
        running.publish("prices", b"AAPL 189.95")
        with Peer(running.address) as peer:
            for line in talk.splitlines():
                who, _, text = line.partition("  ")
                if who == "client":
                    peer.send(read(text))
                else:
                    assert who == "server"
                    wanted = read(text)
                    assert peer.exactly(len(wanted)) == wanted
            if wanted == b"\xff" * 8:
                assert peer.over()


def test_the_program_needs_no_library():
    with ServerThread() as running:
        program = PROGRAM.replace("7777", str(running.address[1]))
        done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, timeout=30)
    assert (done.stdout, done.stderr) == (PRINTED, "")
    assert re.findall(r"^(?:import|from) (\w+)", program, re.MULTILINE) == ["socket", "struct"]
