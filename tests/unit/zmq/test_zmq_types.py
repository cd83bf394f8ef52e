"""The types that mypy finds in a program: those of pyzmq."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("zmq")
pytest.importorskip("mypy")

PROGRAM = """
import zmq
import zmq.asyncio

context = zmq.Context()
reveal_type(context)
reveal_type(zmq.Context(zmq.asyncio.Context()))
socket = context.socket(zmq.PUSH)
reveal_type(socket)
reveal_type(zmq.Socket(context, zmq.PUSH))
reveal_type(socket.recv())
reveal_type(socket.recv(copy=False))
reveal_type(socket.recv(0, False))
reveal_type(socket.recv_multipart())
reveal_type(socket.recv_multipart(copy=False))
reveal_type(socket.recv_string())
reveal_type(socket.send(b""))
reveal_type(socket.send(b"", copy=False))
reveal_type(socket.send_multipart([b""]))
reveal_type(socket.poll())
reveal_type(zmq.Poller().poll())
with zmq.Context() as entered, entered.socket(zmq.REP) as rep:
    reveal_type(entered)
    reveal_type(rep)


async def main() -> None:
    context = zmq.asyncio.Context()
    reveal_type(context)
    reveal_type(zmq.asyncio.Context.instance())
    socket = context.socket(zmq.PULL)
    reveal_type(socket)
    reveal_type(await socket.recv())
    reveal_type(await socket.recv(copy=False))
    reveal_type(await socket.recv_multipart())
    reveal_type(await socket.send(b""))
    reveal_type(await socket.send_multipart([b""]))
    reveal_type(await socket.recv_string())
    reveal_type(await zmq.asyncio.Poller().poll())
"""
ROOT = Path(__file__).parents[3]


def revealed(folder: Path, program: str) -> list[str]:
    path = folder / "program.py"
    path.write_text(program)
    command = [sys.executable, "-m", "mypy", "--config-file=", "--cache-dir", str(folder / "cache"), str(path)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return [re.sub(r"[a-z_]+\.(?=[\w.])", "", kind) for kind in re.findall('Revealed type is "(.*)"', ran.stdout)]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_types_of_a_program_are_those_of_pyzmq(tmp_path: Path) -> None:
    theirs = revealed(tmp_path, PROGRAM)
    ours = revealed(
        tmp_path,
        PROGRAM.replace("import zmq\nimport zmq.asyncio", "import omq.zmq as zmq\nimport omq.zmq.asyncio"),
    )
    assert len(ours) == PROGRAM.count("reveal_type")
    assert ours == theirs
