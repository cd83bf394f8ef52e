"""Members of a cluster, for clients: each is a relay to one plain broker, whose store stands for the replicated one.

A member plays the leader or a follower as the page of the protocol describes it. The test changes the roles.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import json
import threading
from collections.abc import Callable, Iterable
from typing import Any, Final

import omq.asyncio
from omq.broker import protocol
from omq.errors import OmqError

THREAD_TIMEOUT_S: Final = 10.0
_UNLIMITED: Final = 2**31 - 1

#: What a follower executes itself.
_READS: Final = {
    protocol.HELLO,
    protocol.BYE,
    protocol.PING,
    protocol.FLUSH,
    protocol.READ,
    protocol.OFFSET_AFTER,
    protocol.OFFSET_AT,
    protocol.TOPICS,
    protocol.CANCEL,
    protocol.CREDIT,
}
_NOT_ANSWERED: Final = {
    protocol.CREDIT,
    protocol.POSITION,
    protocol.ACK,
    protocol.NACK,
    protocol.PROGRESS,
    protocol.RETURN,
}


class Client:
    """A client of a member, and its connection to the broker behind it."""

    def __init__(self, upstream: Any) -> None:
        self.upstream = upstream
        self.reader: asyncio.Task[None] | None = None
        self.tags: dict[bytes, bytes] = {}  # of unanswered requests and open streams: their commands


class Member:
    """A member of the cluster.

    Attributes:
        endpoint: Where clients connect.
        leads: Whether it is the leader.
        leader: The endpoints of the leader that it names.
        hellos: The number of sessions that it was asked for.
        commands: What clients have sent, in order.
        mute: True answers nothing: a process that hangs.
        refuses: True answers `not-leader` to all but `HELLO`, although its `WELCOME` has the role of the leader.
        held: Commands that it executes and does not answer.
    """

    def __init__(self, cluster: Members, broker: str) -> None:
        self._cluster = cluster
        self._broker = broker
        self._clients: dict[bytes, Client] = {}
        self._router: Any = None
        self._task: asyncio.Task[None] | None = None
        self.endpoint = "tcp://127.0.0.1:*"
        self.leads = False
        self.leader: list[str] = []
        self.hellos = 0
        self.commands: list[bytes] = []
        self.mute = False
        self.refuses = False
        self.held: set[bytes] = set()

    # ------------------------------------------------------------------ for the test, in its thread

    def lead(self) -> None:
        """Makes it the leader, whom the others name; the one before steps down."""
        self._cluster.run(self._cluster.change, self)

    def step_down(self) -> None:
        """Makes it a follower that knows no leader."""
        self._cluster.run(self._cluster.change, None)

    def kill(self) -> None:
        """Ends it and all its connections."""
        self._cluster.run(self._stop)

    def start(self) -> None:
        """Starts it, again at its endpoint after a kill."""
        self._cluster.run(self._start)

    # ------------------------------------------------------------------ in the thread of the loop

    def _start(self) -> None:
        self._router = omq.asyncio.ROUTER(send_hwm=_UNLIMITED, security=self._cluster.security)
        self.endpoint = self._router.bind(self.endpoint)
        self._task = asyncio.get_running_loop().create_task(self._serve(self._router))

    def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None
            self._router.stop()
        self._end_sessions(b"")

    def _end_sessions(self, code: bytes) -> None:
        """Ends what clients have open and have asked for, with an error; empty: without a word."""
        clients, self._clients = self._clients, {}
        for identity, client in clients.items():
            if client.reader is not None:
                client.reader.cancel()
            client.upstream.stop()
            for tag in client.tags if code and not self.mute else ():
                self._send(identity, protocol.ERROR, tag, code, self._text())

    def set_role(self, leads: bool, leader: list[str]) -> None:
        """Changes the role; the core of the old one ends."""
        self.leader = leader
        if leads != self.leads:
            self.leads = leads
            self._end_sessions(b"not-leader")

    def _text(self) -> bytes:
        return f"this broker is a follower; the leader is {self.leader}".encode()

    def _send(self, *parts: bytes) -> None:
        with contextlib.suppress(OmqError):
            self._router.send_multipart_nowait(parts)

    async def _serve(self, router: Any) -> None:
        while True:
            identity, *parts = await router.recv_multipart()
            self.commands.append(parts[0])
            if self.mute:
                continue
            if parts[0] == protocol.HELLO:
                self.hellos += 1
            if self.refuses and parts[0] not in {protocol.HELLO, *_NOT_ANSWERED}:
                self._send(identity, protocol.ERROR, parts[1], b"not-leader", self._text())
            elif self.leads or self._may_follow(parts):
                await self._relay(identity, parts)
            elif parts[0] not in _NOT_ANSWERED:
                self._send(identity, protocol.ERROR, parts[1], b"not-leader", self._text())

    def _may_follow(self, parts: list[bytes]) -> bool:
        if parts[0] == protocol.SUBSCRIBE:
            return json.loads(parts[3])["name"] is None
        return parts[0] in _READS

    async def _relay(self, identity: bytes, parts: list[bytes]) -> None:
        client = self._clients.get(identity)
        if client is None:
            client = self._clients[identity] = Client(omq.asyncio.DEALER(connect=[self._broker], send_hwm=_UNLIMITED))
            client.reader = asyncio.get_running_loop().create_task(self._answer(identity, client))
        if parts[0] not in _NOT_ANSWERED:
            client.tags[parts[1]] = parts[0]
        await client.upstream.send_multipart(parts)

    async def _answer(self, identity: bytes, client: Client) -> None:
        while True:
            command, tag, *rest = await client.upstream.recv_multipart()
            if client.tags.get(tag) in self.held:
                continue
            if command == protocol.WELCOME:
                rest[0] = json.dumps({**json.loads(rest[0]), "cluster": self._about()}).encode()
            if command not in {protocol.BLOCK, protocol.JOBS, protocol.SUBSCRIBED, protocol.CONSUMING}:
                client.tags.pop(tag, None)
            self._send(identity, command, tag, *rest)

    def _about(self) -> dict[str, Any]:
        return {
            "name": self._cluster.name,
            "node": self.endpoint,
            "role": "leader" if self.leads else "follower",
            "leader": self.leader,
            "members": self._cluster.named,
        }


class Members:
    """A cluster of members, the first of which leads; leaving its `with` block ends them.

    Args:
        broker: The endpoint of the broker behind them.
        count: Their number.
        security: Their security towards clients.
        name: The name of the cluster.

    Attributes:
        named: The endpoints that `WELCOME` names as those of the members.
    """

    def __init__(self, broker: str, count: int = 3, security: omq.Security | None = None, name: str = "orders") -> None:
        self.name = name
        self.security = security
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="cluster members", daemon=True)
        self._thread.start()
        self.members = [Member(self, broker) for _ in range(count)]
        for member in self.members:
            member.start()
        self.named = [member.endpoint for member in self.members]
        self.members[0].lead()

    @property
    def endpoints(self) -> list[str]:
        """The endpoints of all members."""
        return [member.endpoint for member in self.members]

    def change(self, leader: Member | None) -> None:
        """Gives the members their roles; in the thread of the loop."""
        # The old leader ends first, as the new one's sessions at the broker end the old one's.
        for member in sorted(self.members, key=lambda one: one is leader):
            member.set_role(member is leader, [] if leader is None else [leader.endpoint])

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Calls a function in the thread of the loop, and waits for it."""
        done: concurrent.futures.Future[Any] = concurrent.futures.Future()

        def call() -> None:
            try:
                done.set_result(function(*arguments))
            except BaseException as error:
                done.set_exception(error)

        self._loop.call_soon_threadsafe(call)
        return done.result(THREAD_TIMEOUT_S)

    def close(self) -> None:
        """Ends all members."""
        for member in self.members:
            member.kill()
        tasks: Iterable[asyncio.Task[Any]] = self.run(lambda: asyncio.all_tasks(self._loop))
        for task in tasks:
            self._loop.call_soon_threadsafe(task.cancel)
        if tasks:
            asyncio.run_coroutine_threadsafe(asyncio.wait(tasks), self._loop).result(THREAD_TIMEOUT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(THREAD_TIMEOUT_S)
        self._loop.close()

    def __enter__(self) -> Members:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Changes:
    """Makes one member after the other the leader, with a while without one; leaving its `with` block ends that.

    Args:
        cluster: The members.
        enough: The number of changes that a test waits for.
        interval: Seconds between two changes.
    """

    def __init__(self, cluster: Members, enough: int = 5, interval: float = 0.15) -> None:
        self.count = 0
        self._cluster = cluster
        self._enough = enough
        self._interval = interval
        self._over = threading.Event()
        self._errors: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, name="changes of leaders", daemon=True)

    @property
    def enough(self) -> bool:
        """Returns whether there were enough changes."""
        return self.count >= self._enough

    def _run(self) -> None:
        members = self._cluster.members
        try:
            while not self._over.wait(self._interval):
                self.count += 1
                if self.count % 3 == 0:
                    members[(self.count - 1) % 3].step_down()
                    self._over.wait(self._interval / 3)
                members[self.count % 3].lead()
        except BaseException as error:
            self._errors.append(error)

    def __enter__(self) -> Changes:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(THREAD_TIMEOUT_S)
        assert not self._thread.is_alive()
        assert not self._errors, self._errors
