"""The coordinator of a stream: it knows the owner of each partition, wherever in the cluster that is.

It is a process beside the driver, started by the process that Spark asks for offsets, and found again, by the stream's
name, by the query's next run. While no run is there the owners rest; after `keepSeconds` without one it ends them, and
itself.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import secrets
import socket
import sys
import threading
import time
from typing import Any, Final

from omq.spark.live.process import detach
from omq.spark.live.trusted import SILENCE, Channel, Place, Server, is_ours

STARTING: Final = 30.0  # seconds that an owner may take to begin, after which another task may start one
RETURNING: Final = 3.0  # seconds that owners of another coordinator have to come back
TELLING: Final = 2.0  # seconds that owners may take to tell how they are


def name_of(stream: str) -> str:
    """The name of a stream's coordinator among the abstract Unix sockets of the driver's host."""
    return f"omq-spark/{os.getuid()}/{stream}"


class _Owned:
    """An owner, as the coordinator sees it."""

    def __init__(self, name: str, place: Place, channel: Channel) -> None:
        self.name = name
        self.place = place
        self.channel = channel
        self.status: dict[str, Any] = {}
        self.told = 0
        self.heard = time.monotonic()
        self.ended = False

    def order(self, **order: Any) -> None:
        """Says something to it; one that has gone will be noticed elsewhere."""
        with contextlib.suppress(OSError):
            self.channel.send(order)


class Coordinator:
    """Answers runs of the query, owners, and tasks.

    Args:
        stream: The stream's name.
        secret: Its secret.
        port: The port of a coordinator that has gone, whose owners come back; 0 for any.

    Raises:
        OSError: The stream has a coordinator.
    """

    def __init__(self, stream: str, secret: bytes, port: int = 0) -> None:
        self._changed = threading.Condition()
        self._owners: dict[str, _Owned] = {}
        self._granted: dict[str, float] = {}
        self._failed: dict[str, dict[str, str]] = {}
        self._lost: list[dict[str, Any]] = []
        self._said: list[str] = []
        self._runs = 0
        self._rest = False  # the run is over; not: none has come yet
        self._since = time.monotonic()
        self._keep = 60.0
        self._questions = itertools.count(1)
        self._secret = secret
        # Owners of one that has gone come back in a moment: nobody is to start others until then.
        self._settled = time.monotonic() + (RETURNING if port else 0.0)
        self._door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._door.bind(f"\0{name_of(stream)}/run")
        self._server = Server(name_of(stream), secret, self._serve, port)
        self._door.listen(8)
        threading.Thread(target=self._open, name="omq-spark-runs", daemon=True).start()

    # ------------------------------------------------------------------ runs of the query

    def _open(self) -> None:
        while True:
            sock, _ = self._door.accept()
            if is_ours(sock):
                threading.Thread(target=self._run, args=(Channel(sock),), name="omq-spark-run", daemon=True).start()
            else:
                sock.close()

    def _run(self, channel: Channel) -> None:
        """Serves a process that Spark asks for offsets, until it ends."""
        with self._changed:
            self._runs += 1
            self._rest = False
        try:
            with contextlib.suppress(OSError, EOFError):
                channel.send({"place": self._server.place.told(), "secret": self._secret.hex()})
                while True:
                    self._answer(channel, channel.hear())
        finally:
            with self._changed:
                self._runs -= 1
                self._since = time.monotonic()
                self._changed.notify_all()
            self._rest_if_alone()
            channel.close()

    def _rest_if_alone(self) -> None:
        """Has the owners rest where no run is there."""
        with self._changed:
            self._rest = not self._runs
            resting = list(self._owners.values()) if self._rest else []
        for owner in resting:
            owner.order(rest=True)

    def _answer(self, channel: Channel, asked: dict[str, Any]) -> None:
        if "keep" in asked:
            self._keep = asked["keep"]
            self._let_go(asked["wanted"])
        if "commit" in asked:
            for owner in self._standing():
                owner.order(commit=asked["commit"])
        if "status" in asked:
            self._have_told()
            with self._changed:
                lost, self._lost = self._lost, []
                said, self._said = self._said, []
                found = [{**owner.status, "connection": owner.name} for owner in self._owners.values()]
            channel.send({"partitions": found, "lost": lost, "said": said})

    def _let_go(self, wanted: list[str]) -> None:
        """Ends owners that the query, which goes on with other options, has no use for."""
        with self._changed:
            for owner in [one for one in self._owners.values() if one.name not in wanted]:
                del self._owners[owner.name]
                if owner.status.get("rows") or owner.status.get("waiting"):
                    self._lose(owner, "is of no use any more: socket, endpoint or subscription are others now")
                owner.order(end=True)

    def _lose(self, owner: _Owned, why: str) -> None:
        self._lost.append({**owner.status, "connection": owner.name, "why": why})

    def _standing(self) -> list[_Owned]:
        with self._changed:
            return list(self._owners.values())

    def _have_told(self) -> None:
        """Waits until every owner has told how it is."""
        question = next(self._questions)
        asked = self._standing()
        for owner in asked:
            owner.order(tell=question)
        with self._changed:
            self._changed.wait_for(lambda: all(one.told >= question or one.ended for one in asked), TELLING)

    # ------------------------------------------------------------------ owners and tasks

    def _serve(self, channel: Channel) -> None:
        asked = channel.hear()
        if "own" not in asked:
            self._find(channel, asked)
        elif "failed" in asked:
            with self._changed:
                self._granted.pop(asked["own"], None)
                self._failed[asked["own"]] = {"error": asked["failed"], "kind": asked["kind"]}
                self._changed.notify_all()
        else:
            self._own(channel, _Owned(asked["own"], Place.heard(asked["place"]), channel))

    def _own(self, channel: Channel, owner: _Owned) -> None:
        """Has a process own a partition, for as long as it is there."""
        channel.watch()
        with self._changed:
            before = self._owners.get(owner.name)
            if before is not None and before.place != owner.place:
                # It was taken for dead, and has a successor.
                owner.order(end=True)
                return
            self._owners[owner.name] = owner
            self._granted.pop(owner.name, None)
            self._changed.notify_all()
            rests = self._rest
        if rests:
            owner.order(rest=True)
        try:
            while True:
                told = channel.hear()
                with self._changed:
                    owner.heard = time.monotonic()
                    owner.status = told["status"]
                    owner.told = told.get("told", owner.told)
                    self._said += told.get("said", ())
                    self._changed.notify_all()
        finally:
            with self._changed:
                owner.ended = True
                if self._owners.get(owner.name) is owner:
                    del self._owners[owner.name]
                    if self._runs:
                        self._lose(owner, "has died")
                self._changed.notify_all()

    def _find(self, channel: Channel, asked: dict[str, Any]) -> None:
        """Tells a task where the owner of its partition is; or has it start one."""
        name = asked["find"]
        if "failed" in asked:
            with self._changed:
                self._granted.pop(name, None)
                self._changed.notify_all()
            return
        until = time.monotonic() + STARTING
        # A failure is told to those who wait for it; who comes later tries again.
        with self._changed:
            if name not in self._granted:
                self._failed.pop(name, None)
            while True:
                owner = self._owners.get(name)
                if owner is not None and asked.get("not") != owner.place.name:
                    answer: dict[str, Any] = {"owner": owner.place.told()}
                    break
                if name in self._failed:
                    answer = dict(self._failed[name])
                    break
                now = time.monotonic()
                if owner is None and self._granted.get(name, 0.0) < now and now > self._settled:
                    self._granted[name] = now + STARTING
                    answer = {"start": True}
                    break
                if owner is not None and now > until:
                    # Its line to us holds, but this task does not get through to it.
                    answer = {"error": f"{_spoken(owner)} cannot be reached from this executor", "kind": "StateError"}
                    break
                self._changed.wait(0.2)
        channel.send(answer)

    # ------------------------------------------------------------------ the end

    def wait(self) -> None:
        """Waits until neither a run nor an owner is there, or no run has been for `keepSeconds`; ends the owners."""
        with self._changed:
            self._changed.wait_for(lambda: self._runs, STARTING)
        self._rest_if_alone()
        with self._changed:
            while self._runs or (self._owners and time.monotonic() < self._since + self._keep):
                self._changed.wait(1.0)
                for owner in self._owners.values():
                    if time.monotonic() > owner.heard + SILENCE:
                        owner.channel.close()  # who reads there finds the end, and lets go of it
        for owner in self._standing():
            owner.order(end=True)
        with self._changed:
            self._changed.wait_for(lambda: not self._owners, TELLING)


def _spoken(owner: _Owned) -> str:
    where = ", ".join(owner.place.addresses)
    return f"the process that has the connection {owner.name} (on {where}, port {owner.place.port})"


def main() -> None:
    """The process."""
    told = json.load(sys.stdin)
    detach()
    # Nothing is held open of those who have started us.
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 2)
    os.close(nowhere)
    try:
        coordinator = Coordinator(told["stream"], bytes.fromhex(told["secret"] or secrets.token_hex(32)), told["port"])
    except OSError:
        return  # the stream has one
    coordinator.wait()


if __name__ == "__main__":
    main()
