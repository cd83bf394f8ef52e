"""The guide to a secure service, word for word: its commands, and its two programs in two processes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "howto" / "secure-a-service.md").read_text(encoding="utf-8")
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
BOUND = 30  # seconds


def start(*command: str, at: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(command, cwd=at, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def output(process: subprocess.Popen[str]) -> str:
    try:
        out, err = process.communicate(timeout=BOUND)
    finally:
        process.kill()
    assert process.returncode == 0, err
    return out


def test_two_processes_know_each_other(tmp_path: Path) -> None:
    commands = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    for command in commands:
        assert output(start("sh", "-ec", command, at=tmp_path)) == "".join(
            f"{name}.key {name}.key_secret\n" for name in ("server", "client")
        )
    assert (tmp_path / "server.key_secret").stat().st_mode & 0o777 == 0o600
    server, client = re.findall(r"^```py\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / "server.py").write_text(
        server.replace(":5555", ":*").replace("    message", "    print(rep.endpoints[0], flush=True)\n    message")
    )
    serving = start(sys.executable, "server.py", at=tmp_path)
    assert serving.stdout is not None
    endpoint = serving.stdout.readline().strip()
    (tmp_path / "client.py").write_text(client.replace("tcp://127.0.0.1:5555", endpoint))
    assert output(start(sys.executable, "client.py", at=tmp_path)) == "the one with this key\n"
    assert output(serving) == "who am I? True\n"
