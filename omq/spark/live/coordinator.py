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
import sys
import time
from typing import Any, Final

import omq
from omq.spark.live.note import Note
from omq.spark.live.process import detach, speak_nowhere
from omq.spark.live.trusted import FROZEN, Channel, Place, Server, accepted, in_a_thread, is_ours
from omq.unpatched import socket, threading

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
        self.leaves = False  # it has nothing that anybody could want

    def told_of(self) -> dict[str, Any]:
        """What a run is told of it."""
        return {**self.status, "connection": self.name, "process": self.place.name}

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
        self._failures: dict[str, list[dict[str, str]]] = {}  # of owners at their start
        self._lost: list[dict[str, Any]] = []
        self._expected: list[dict[str, Any]] = []  # owners of a coordinator that has gone
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

    @property
    def port(self) -> int:
        """Where owners find it."""
        return self._server.place.port

    # ------------------------------------------------------------------ runs of the query

    def _open(self) -> None:
        for sock in accepted(self._door):
            if is_ours(sock):
                in_a_thread(self._run, sock)
            else:
                sock.close()

    def _run(self, sock: socket.socket) -> None:
        """Serves a process that Spark asks for offsets, until it ends."""
        channel = Channel(sock)
        with self._changed:
            self._runs += 1
            self._rest = False
            for owner in self._owners.values():
                owner.order(serve=True)
        try:
            with contextlib.suppress(OSError, EOFError, omq.OmqError):
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
            for owner in self._owners.values() if self._rest else ():
                owner.order(rest=True)

    def _answer(self, channel: Channel, asked: dict[str, Any]) -> None:
        if "keep" in asked:
            self._keep = asked["keep"]
            self._expected = asked["known"]
            self._let_go(asked["wanted"])
        if "commit" in asked:
            for owner in self._standing():
                owner.order(commit=asked["commit"])
        if "status" in asked:
            self._have_told()
            with self._changed:
                self._miss()
                lost, self._lost = self._lost, []
                said, self._said = self._said, []
                found = [owner.told_of() for owner in self._owners.values()]
            channel.send({"partitions": found, "lost": lost, "said": said})

    def _miss(self) -> None:
        """Notes owners of a coordinator that has gone which have had the time to come here, and have not."""
        if time.monotonic() < self._settled:
            return
        there = {owner.place.name for owner in self._owners.values()}
        self._lost += [{**one, "why": "has died"} for one in self._expected if one["process"] not in there]
        self._expected = []

    def _let_go(self, wanted: list[str]) -> None:
        """Ends owners that the query, which goes on with other options, has no use for."""
        with self._changed:
            for owner in [one for one in self._owners.values() if one.name not in wanted]:
                del self._owners[owner.name]
                if owner.status.get("rows") or owner.status.get("waiting"):
                    self._lose(owner, "is of no use any more: socket, endpoint or subscription are others now")
                owner.order(end=True)

    def _lose(self, owner: _Owned, why: str) -> None:
        self._lost.append({**owner.told_of(), "why": why})

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
        if "own" in asked:
            told = self._begun(channel, asked["own"]) if "begins" in asked else asked
            if told is not None:
                self._own(channel, _Owned(asked["own"], Place.heard(told["place"]), channel))
        elif "lives" in asked:
            channel.send({"lives": self._lives(asked["lives"], asked["place"])})
        else:
            self._find(channel, asked)

    def _begun(self, channel: Channel, name: str) -> dict[str, Any] | None:
        """What an owner says that begins; nothing if it fails."""
        told: dict[str, Any] = {"failed": "the process that was to have the connection has ended", "kind": "StateError"}
        with contextlib.suppress(OSError, EOFError):
            told = channel.hear()
        if "failed" not in told:
            return told
        self._fail(name, told["failed"], told["kind"])
        return None

    def _fail(self, name: str, error: str, kind: str) -> None:
        """Tells those who wait for an owner why there is none."""
        with self._changed:
            self._granted.pop(name, None)
            self._failures.setdefault(name, []).append({"error": error, "kind": kind})
            self._changed.notify_all()

    def _own(self, channel: Channel, owner: _Owned) -> None:
        """Has a process own a partition, for as long as it is there."""
        channel.watch()
        with self._changed:
            before = self._owners.get(owner.name)
            if before is not None and before.place != owner.place:
                # It was taken for dead, and has a successor.
                owner.order(end=True)
                return
            # It serves nobody before it is told to.
            owner.order(**({"rest": True} if self._rest else {"serve": True}))
            self._owners[owner.name] = owner
            self._granted.pop(owner.name, None)
            self._changed.notify_all()
        try:
            while True:
                told = channel.hear()
                if "leaves" in told:
                    owner.leaves = True
                    break
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
                    if not owner.leaves:
                        self._lose(owner, "has died")
                self._changed.notify_all()

    def _find(self, channel: Channel, asked: dict[str, Any]) -> None:
        """Tells a task where the owner of its partition is; or has it start one."""
        name = asked["find"]
        if "failed" in asked:
            self._fail(name, asked["failed"], "StateError")
            return
        with self._changed:
            # What failed before it first asked is no matter: perhaps it does not fail again.
            known = asked.get("failures", len(self._failures.get(name, ())))
            while True:
                failures = self._failures.get(name, [])
                now = time.monotonic()
                if self._rest:
                    answer: dict[str, Any] = {"error": "the query has ended", "kind": "StateError"}
                    break
                if name in self._owners:
                    answer = {"owner": self._owners[name].place.told()}
                    break
                if len(failures) > known:
                    answer = dict(failures[-1])
                    break
                if self._granted.get(name, now) < now:
                    # Perhaps the task that was to start it is no more.
                    del self._granted[name]
                    if "failures" in asked:
                        self._fail(name, f"the owner of {name} has not begun within {STARTING:g} s", "StateError")
                elif name not in self._granted and now > self._settled:
                    self._granted[name] = now + STARTING
                    answer = {"start": True, "failures": len(failures)}
                    break
                else:
                    self._changed.wait(0.2)
        channel.send(answer)

    def _lives(self, name: str, place: str) -> bool:
        """Whether an owner, to which a task has lost its line, answers us."""
        question = next(self._questions)
        with self._changed:
            # It may be about to come back from a coordinator that has gone.
            self._changed.wait_for(lambda: name in self._owners, max(self._settled - time.monotonic(), 0.0))
            owner = self._owners.get(name)
            if owner is None or owner.place.name != place:
                return False
            owner.order(tell=question)
            self._changed.wait_for(lambda: owner.told >= question or owner.ended)
            return not owner.ended

    # ------------------------------------------------------------------ the end

    def wait(self) -> None:
        """Waits until neither a run nor an owner is there, or no run has been for `keepSeconds`; ends the owners."""
        with self._changed:
            self._changed.wait_for(lambda: self._runs, STARTING)
        self._rest_if_alone()
        with self._changed:
            while self._runs or ((self._owners or self._lost) and time.monotonic() < self._since + self._keep):
                self._changed.wait(1.0)
                for owner in self._owners.values():
                    if time.monotonic() > owner.heard + FROZEN:
                        owner.channel.close()  # who reads there finds the end, and lets go of it
        for owner in self._standing():
            owner.order(end=True)
        with self._changed:
            self._changed.wait_for(lambda: not self._owners, TELLING)


def _start(stream: str, secret: bytes, port: int) -> Coordinator | None:
    """A coordinator, at the port of one that has gone if that is free; nothing if the stream has one."""
    for wanted in dict.fromkeys((port, 0)):
        with contextlib.suppress(OSError):
            return Coordinator(stream, secret, wanted)
    return None


def main() -> None:
    """The process."""
    told = json.load(sys.stdin)
    detach()
    speak_nowhere()
    note = Note(told["stream"])
    if not told["secret"]:
        told |= note.read()
    secret = bytes.fromhex(told["secret"]) or secrets.token_bytes(32)
    coordinator = _start(told["stream"], secret, told["port"])
    if coordinator is None:
        return
    note.write({"secret": secret.hex(), "port": coordinator.port})
    coordinator.wait()
    note.remove()


if __name__ == "__main__":
    main()
