"""Plays a plan: makes its sockets, does its steps, and looks at what is left.

Whatever the steps did, the sockets that are left have to work: two of them meet once more and exchange messages, of
which none may be missing. If nothing killed a connection, every message that was ever accepted has to come.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import time
from collections.abc import Awaitable, Callable
from typing import Any

import omq
from omq.types import ONE_CONNECTION
from tests.fault.lifecycle_plan import FANS_OUT, KEEPS, RECEIVES, SENDS, Plan, Role, Step
from tests.fault.message_history import Damaged, History, compose
from tests.fault.twin_adapters import Background, Twin
from tests.support.chaos_proxy import Link, Proxy
from tests.support.socket_types import HELLO, NUMBERED, ONE_PART

SOON = 10.0  # seconds within which what has to happen must have happened
FINAL = 3  # messages of the last exchange
ONE = frozenset(kind.value for kind in ONE_CONNECTION)  # types that have one connection to a place

#: What a call may raise, whatever the socket.
_EXPECTED: dict[str, tuple[type[Exception], ...]] = {
    "bind": (omq.BindError,),
    "unbind": (omq.EndpointError,),
    "disconnect": (omq.EndpointError,),
    "recv": (omq.MultipartError,),
    "recv_into": (omq.MultipartError, omq.MessageTooLarge),
}


class Voice:
    """One caller that sends: its messages are in order among themselves."""

    def __init__(self, sender: int, role: Role) -> None:
        self.sender = sender
        self.side = role.side
        self.keeps = role.kind in KEEPS
        self._numbers = itertools.count(1)

    def next(self, count: int = 1) -> list[int]:
        """The numbers of its next messages."""
        return [next(self._numbers) for _ in range(count)]


class Actor:
    """A role, and the socket that plays it now.

    Attributes:
        take: Which socket of this role it is.
        voice: Of the steps, which are made one after the other.
        routes: Identities of peers that a ROUTER has received from, or their numbers for a type that sends by number.
    """

    def __init__(self, number: int, role: Role) -> None:
        self.number = number
        self.role = role
        self.socket: Any = None
        self.take = 0
        self.voice: Voice
        self.turn = itertools.count()
        self.bound: list[str] = []
        self.connected: list[str] = []
        self.routes: list[Any] = []

    @property
    def kind(self) -> str:
        return self.role.kind

    @property
    def alive(self) -> bool:
        return self.socket is not None and not self.socket.closed

    def __str__(self) -> str:
        return f"{self.kind}{self.number}.{self.take}"


class LifecycleRunner:
    """One lifecycle of one twin.

    Args:
        endpoints: Gives an endpoint of its own for a number.
        report: Is called with each step and its result.
    """

    def __init__(
        self,
        plan: Plan,
        twin: Twin,
        context: omq.Context,
        proxy: Proxy,
        endpoints: Callable[[int], str],
        report: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.plan = plan
        self.twin = twin
        self.history = History()
        self.report = report
        self._context = context
        self._proxy = proxy
        self._endpoint = endpoints
        self._actors = [Actor(number, role) for number, role in enumerate(plan.cast)]
        self._links: dict[int, Link] = {}
        self._background: list[Background] = []
        self._closings: list[Background] = []
        self._voices: list[Voice] = []
        self._late = False  # the last exchange has begun

    async def play(self) -> None:
        """Everything, from the first socket to the last descriptor."""
        try:
            for actor in self._actors:
                await self._make(actor)
            for step in self.plan.steps:
                self.report(f"{step}")
                await self._perform(step)
            await self._last_exchange()
            for step in self.plan.ending:
                self.report(f"{step}")
                await self._end(self._actors[step.who], step.how, step.timeout)
            await self._settle()
        finally:
            for actor in self._actors:
                if actor.socket is not None:
                    await self.twin.do(actor.socket, "stop")
            for link in self._links.values():
                link.close()
        self.history.check(self.plan.streams, fans_out=self.plan.kinds[0] in FANS_OUT)

    async def _make(self, actor: Actor) -> None:
        actor.take += 1
        actor.voice = self._voice(actor)
        actor.routes.clear()
        actor.socket = await self.twin.make(actor.kind, self._context, actor.role.owned, actor.role.options)

    def _voice(self, actor: Actor) -> Voice:
        self._voices.append(Voice(len(self._voices) + 1, actor.role))
        return self._voices[-1]

    # ------------------------------------------------------------------ steps

    async def _perform(self, step: Step) -> None:
        actor = self._actors[step.who]
        perform: Callable[[Actor, Step], Awaitable[None]] = getattr(self, f"_do_{step.what}")
        try:
            await perform(actor, step)
        except self._allowed(actor, step.what) as error:
            self.report(f"    {type(error).__name__}: {error}")

    def _allowed(self, actor: Actor, what: str) -> tuple[type[Exception], ...]:
        allowed = (omq.Timeout, TimeoutError, omq.ClosedError, *_EXPECTED.get(what, ()))
        if actor.kind in ("REQ", "REP"):
            allowed += (omq.StateError,)  # it is not its turn
        if actor.kind in ("ROUTER", *NUMBERED):
            allowed += (omq.UnroutableError,)
        if actor.kind == "PEER" and what == "connect":
            allowed += (omq.ConnectError,)  # of `connect_peer`: it was disconnected meanwhile
        if actor.kind == "DISH" and what in ("subscribe", "unsubscribe"):
            allowed += (omq.UsageError,)  # it has joined already, or has not
        return allowed

    async def _do_bind(self, actor: Actor, _: Step) -> None:
        await self._bind(actor, self._endpoint(actor.number))

    async def _bind(self, actor: Actor, endpoint: str) -> None:
        actor.bound.append(await self.twin.do(actor.socket, "bind", endpoint))

    async def _do_connect(self, actor: Actor, step: Step) -> None:
        endpoint = self._endpoint(step.peer)
        if self.plan.proxied and step.amount > 2:
            endpoint = self._link(step.peer).endpoint
        if actor.kind == "PEER" and step.amount % 2:
            # In vain it leaves nothing behind.
            actor.routes.append(await self.twin.do(actor.socket, "connect_peer", endpoint, timeout=step.timeout))
            actor.connected.append(endpoint)
        else:
            await self._connect(actor, endpoint)

    async def _connect(self, actor: Actor, endpoint: str) -> None:
        endpoint = await self.twin.do(actor.socket, "connect", endpoint)
        # A second connect makes no second connection where that would only do harm.
        if actor.kind not in ONE or endpoint.startswith("inproc:") or endpoint not in actor.connected:
            actor.connected.append(endpoint)

    def _link(self, peer: int) -> Link:
        if peer not in self._links:
            self._links[peer] = self._proxy.link(self._endpoint(peer), self._endpoint(100 + peer))
        return self._links[peer]

    async def _do_unbind(self, actor: Actor, step: Step) -> None:
        endpoint = actor.bound.pop() if actor.bound else self._endpoint(actor.number)
        await self.twin.do(actor.socket, "unbind", endpoint)

    async def _do_disconnect(self, actor: Actor, step: Step) -> None:
        endpoint = actor.connected.pop() if actor.connected else self._endpoint(step.peer)
        await self.twin.do(actor.socket, "disconnect", endpoint)

    async def _do_send(self, actor: Actor, step: Step) -> None:
        await self._send(actor, actor.voice, [b"x" * int(step.how)], step.timeout)

    async def _do_send_multipart(self, actor: Actor, step: Step) -> None:
        bodies = [b"%d" % n + b"y" * int(step.how) for n in range(step.amount)]
        await self._send(actor, actor.voice, bodies, step.timeout)

    async def _send(self, actor: Actor, voice: Voice, bodies: list[bytes], timeout: float | None, to: Any = b"") -> int:
        """Sends a message; gives its number, or 0 where the type does not send."""
        if actor.kind not in SENDS:
            return 0
        (number,) = voice.next()
        if actor.kind in ONE_PART:
            message = compose(voice.sender, number, topic=b"".join(bodies))
        else:
            message = self._envelope(actor, to) + compose(voice.sender, number, bodies, b"A")
        route = self._route(actor, to)
        if len(message) == 1:
            await self.twin.do(actor.socket, "send", message[0], timeout=timeout, **route)
        else:
            await self.twin.do(actor.socket, "send_multipart", message, timeout=timeout, **route)
        self.history.accept(voice.sender, number)
        return number

    def _route(self, actor: Actor, to: Any) -> dict[str, Any]:
        if actor.kind in NUMBERED:
            routes = actor.routes or [1]  # which is a peer's by a small chance only
            return {"routing_id": to or routes[next(actor.turn) % len(routes)]}
        return {"group": "A"} if actor.kind == "RADIO" else {}

    def _envelope(self, actor: Actor, to: bytes) -> list[bytes]:
        if actor.kind == "ROUTER":
            routes = actor.routes or [b"r%d" % (1 - actor.role.side)]
            to = to or routes[next(actor.turn) % len(routes)]
            return [to, b""] if "REQ" in self.plan.kinds else [to]
        return [b""] if actor.kind == "DEALER" and "REP" in self.plan.kinds else []

    async def _do_send_many(self, actor: Actor, step: Step) -> None:
        if actor.kind not in KEEPS | {"PUB", "XPUB"} or "REP" in self.plan.kinds:
            return
        voice = actor.voice
        numbers = voice.next(step.amount)
        messages = [compose(voice.sender, number, topic=b"A")[0] for number in numbers]
        try:
            taken = await self.twin.do(actor.socket, "send_many", messages, timeout=step.timeout)
        except omq.ClosedError:
            self.history.doubt(voice.sender, numbers)
            raise
        self.history.accept(voice.sender, *numbers[:taken])

    async def _do_recv(self, actor: Actor, step: Step) -> None:
        if actor.kind in RECEIVES:
            self._take(actor, [await self.twin.do(actor.socket, "recv", timeout=step.timeout)])

    async def _do_recv_multipart(self, actor: Actor, step: Step) -> None:
        if actor.kind in RECEIVES:
            self._take(actor, await self._next(actor, actor.socket, step.timeout))

    async def _do_recv_message(self, actor: Actor, step: Step) -> None:
        if actor.kind in RECEIVES:
            message = await self.twin.do(actor.socket, "recv_message", timeout=step.timeout)
            assert message.peer.endpoint
            self._take(actor, self._learned(actor, message))

    async def _do_recv_into(self, actor: Actor, step: Step) -> None:
        if actor.kind in RECEIVES:
            buffer = bytearray(32)
            size = await self.twin.do(actor.socket, "recv_into", buffer, timeout=step.timeout)
            self._take(actor, [bytes(buffer[:size])])

    async def _do_recv_many(self, actor: Actor, step: Step) -> None:
        if actor.kind in RECEIVES:
            for message in await self.twin.do(actor.socket, "recv_many", step.amount, timeout=step.timeout):
                self._take(actor, [message] if isinstance(message, bytes) else message)

    async def _next(self, actor: Actor, socket: Any, timeout: float | None) -> list[bytes]:
        """Receives a whole message; a type that sends by number learns that of the sender."""
        if actor.kind not in NUMBERED:
            return list(await self.twin.do(socket, "recv_multipart", timeout=timeout))
        return self._learned(actor, await self.twin.do(socket, "recv_message", timeout=timeout))

    def _learned(self, actor: Actor, message: omq.Message) -> list[bytes]:
        if actor.kind in NUMBERED and message.routing_id not in actor.routes:
            actor.routes.append(message.routing_id)
        return list(message.parts)

    def _take(self, actor: Actor, parts: list[bytes], ear: str = "") -> None:
        if parts == [HELLO]:
            return  # `hello_message` and its kin
        if actor.kind == "ROUTER":
            if parts[0] not in actor.routes:
                actor.routes.append(parts[0])
            parts = parts[1:]
        while parts and not parts[0]:
            parts = parts[1:]
        if actor.kind == "XPUB":
            assert parts == [b"\1A"] or parts == [b"\0A"] or parts == [b"\1"] or parts == [b"\0"], parts
            return
        try:
            self.history.receive(str(actor), parts, ear)
        except Damaged as error:
            raise Damaged(f"{actor}: {error}") from None

    async def _do_poll(self, actor: Actor, step: Step) -> None:
        await self.twin.do(actor.socket, "poll", step.timeout, 1 + 4 * (step.amount > 2))

    async def _do_wait_for(self, actor: Actor, step: Step) -> None:
        if actor.kind in RECEIVES:
            self._take(actor, await self.twin.cut(actor.socket, "recv_multipart", step.timeout or 0))

    async def _do_wait_connected(self, actor: Actor, step: Step) -> None:
        await self.twin.do(actor.socket, "wait_connected", step.amount, timeout=step.timeout)

    async def _do_pause(self, _: Actor, step: Step) -> None:
        await self.twin.sleep(step.timeout or 0)

    async def _do_look(self, actor: Actor, _: Step) -> None:
        repr(actor.socket)
        assert len(actor.socket.peers) >= 0
        assert actor.socket.endpoints is not None

    async def _do_subscribe(self, actor: Actor, _: Step) -> None:
        if actor.kind in ("SUB", "XSUB", "DISH"):
            await self.twin.do(actor.socket, "join" if actor.kind == "DISH" else "subscribe", b"A")

    async def _do_unsubscribe(self, actor: Actor, _: Step) -> None:
        if actor.kind in ("SUB", "XSUB", "DISH"):
            await self.twin.do(actor.socket, "leave" if actor.kind == "DISH" else "unsubscribe", b"A")

    async def _do_hwm(self, actor: Actor, step: Step) -> None:
        name = "send_hwm" if actor.kind in SENDS else "recv_hwm"
        if actor.alive:
            actor.socket.set_options(**{name: step.amount})

    # ------------------------------------------------------------------ in the background

    async def _do_stream(self, actor: Actor, step: Step) -> None:
        if actor.kind in SENDS:
            self._spawn(actor, "send", lambda: self._stream(actor, step))

    async def _stream(self, actor: Actor, step: Step) -> None:
        socket, voice = actor.socket, self._voice(actor)
        for _ in range(step.amount):
            if actor.socket is socket:
                await self._send(actor, voice, [b"z" * int(step.how)], None)

    async def _do_drain(self, actor: Actor, step: Step) -> None:
        if actor.kind in RECEIVES:
            socket = actor.socket
            self._spawn(actor, "recv", lambda: self._drain(actor, socket, step.amount))

    async def _drain(self, actor: Actor, socket: Any, count: int) -> None:
        take, ear, voice = actor.take, f"background {len(self._background)}", self._voice(actor)
        for _ in range(count):
            parts = await self._next(actor, socket, None)
            if actor.take != take:
                return  # it was a socket's that is closed
            self._take(actor, parts, ear)
            if self._late:
                await self._answer(actor, voice, parts)

    def _spawn(self, actor: Actor, what: str, work: Callable[[], Awaitable[None]]) -> Background:
        async def forgiving() -> None:
            try:
                await work()
            except self._allowed(actor, what) as error:
                self.report(f"    {actor} {what} in the background: {type(error).__name__}: {error}")

        self._background.append(self.twin.spawn(forgiving(), f"seed {self.plan.seed}: {actor} {what}"))
        return self._background[-1]

    async def _do_cancel(self, _: Actor, step: Step) -> None:
        if self._background:
            self._background[step.amount % len(self._background)].cancel()

    # ------------------------------------------------------------------ ends

    async def _do_close(self, actor: Actor, step: Step) -> None:
        if step.amount % 2:
            await self._end(actor, step.how, step.timeout)
        else:
            self._closings.append(self._spawn(actor, "close", lambda: self._end(actor, step.how, step.timeout)))

    async def _do_stop(self, actor: Actor, step: Step) -> None:
        await self._end(actor, "stop", 0)

    async def _do_orphan(self, actor: Actor, step: Step) -> None:
        await self._end(actor, "orphan", 0)

    async def _end(self, actor: Actor, how: str, linger: float | None) -> None:
        begun = time.monotonic()
        socket = actor.socket
        if how == "orphan":
            await self.twin.orphan(socket)
        elif how == "close":
            await self.twin.do(socket, "close", linger)
        else:
            await self.twin.do(socket, "stop")
        assert socket.closed
        took = time.monotonic() - begun
        assert took < SOON / 2 + (linger or 0), f"{actor}: {how} with linger={linger} took {took:.3f} s"

    async def _do_restart(self, actor: Actor, step: Step) -> None:
        await self._end(actor, step.how, step.timeout)
        bound, actor.bound = actor.bound, []
        connected, actor.connected = actor.connected, []
        await self._make(actor)
        for endpoint in connected:
            await self._connect(actor, endpoint)
        for endpoint in bound:
            await self._bind(actor, endpoint)

    # ------------------------------------------------------------------ the network

    async def _do_reset(self, _: Actor, step: Step) -> None:
        for link in self._links.values():
            link.reset()

    async def _do_drop(self, _: Actor, step: Step) -> None:
        for link in self._links.values():
            link.drop()

    async def _do_half_close(self, _: Actor, step: Step) -> None:
        for link in self._links.values():
            link.half_close(step.how)

    async def _do_stall(self, _: Actor, step: Step) -> None:
        for link in self._links.values():
            link.stall()

    async def _do_release(self, _: Actor, step: Step) -> None:
        for link in self._links.values():
            link.release()

    async def _do_split(self, _: Actor, step: Step) -> None:
        for link in self._links.values():
            link.set(chunk=1)

    async def _do_swallow(self, _: Actor, step: Step) -> None:
        for link in self._links.values():
            link.set(swallowing=frozenset(["up"]))

    # ------------------------------------------------------------------ the last exchange

    async def _last_exchange(self) -> None:
        """Those who are left meet, and everything works."""
        self._late = True
        for link in self._links.values():
            link.close()
        for background in self._background:
            background.cancel()
        for closing in self._closings:
            assert await self.twin.join(closing, SOON), "a close hangs"
        sides = [[actor for actor in self._actors if actor.role.side == side] for side in (0, 1)]
        if not self.plan.lossless:
            for side in sides:
                await self._leave_one(side)
        left, right = ([actor for actor in side if actor.alive] for side in sides)
        # A socket without room does not read, and so does not see the end of its input: so these take messages.
        over = False
        takers = self._start_takers(left + right, lambda: over)
        parts = self.plan.clean or self.plan.one_peer or "ROUTER" in self.plan.kinds
        if parts and not self.plan.lossless:
            await self._part(left + right)
        self.report(f"the last exchange of {[str(actor) for actor in left]} and {[str(actor) for actor in right]}")
        paired = self.plan.lossless and self.plan.one_peer and _meet(left[0], right[0])
        for actor in right if not paired else ():
            endpoint = self._endpoint(200 + actor.number)
            await self._bind(actor, endpoint)
            for other in left:
                await self._connect(other, endpoint)
        await self._converge(left, right)
        if self.plan.lossless:
            await self._account(left, right)
        else:
            await self._exchange(left[0], right[0])
        over = True
        for taker in takers:
            assert await self.twin.join(taker, SOON), "a receiver hangs"

    async def _leave_one(self, side: list[Actor]) -> None:
        """Closes all but one of a side, which has one again if it had none."""
        alive = [actor for actor in side if actor.alive]
        for actor in alive[1:]:
            await self._end(actor, "stop", 0)
        if not alive:
            actor = side[0]
            # Its closing may go on in the background.
            await self.twin.do(actor.socket, "stop")
            actor.bound, actor.connected = [], []
            await self._make(actor)

    async def _part(self, actors: list[Actor]) -> None:
        """Takes every endpoint back and waits until each has noticed that its peers are gone."""
        for actor in actors:
            for endpoint in actor.connected:
                await self.twin.do(actor.socket, "disconnect", endpoint)
            for endpoint in actor.bound:
                await self.twin.do(actor.socket, "unbind", endpoint)
            actor.connected, actor.bound = [], []
        await self._until(lambda: not any(actor.socket.peers for actor in actors), "everybody has gone")
        for actor in actors:
            actor.routes.clear()

    async def _converge(self, left: list[Actor], right: list[Actor]) -> None:
        """Waits until both sides know of the same connections, and go on to."""
        calm = 0
        end = time.monotonic() + SOON
        before: tuple[int, int] = (0, 0)
        while calm < 3:
            ones, others = (sum(len(actor.socket.peers) for actor in side) for side in (left, right))
            calm = calm + 1 if 0 < ones == others and (ones, others) == before else 0
            before = ones, others
            assert time.monotonic() < end, f"the sides never agree: {before} connections"
            await self.twin.sleep(0.001)

    async def _until(self, condition: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + SOON
        while not condition():
            assert time.monotonic() < end, f"not within {SOON} s: {what}; {self._state()}"
            await self.twin.sleep(0.0003)

    def _state(self) -> str:
        missing = {voice.sender: self.history.missing(voice.sender) for voice in self._voices}
        return f"missing {missing}, {[(str(actor), actor.socket.peers) for actor in self._actors]}"

    def _start_takers(self, actors: list[Actor], over: Callable[[], bool]) -> list[Background]:
        return [
            self._spawn(actor, "last recv", functools.partial(self._receive_for, actor, over))
            for actor in actors
            if actor.kind in RECEIVES
        ]

    async def _receive_for(self, actor: Actor, over: Callable[[], bool]) -> None:
        """Takes whatever comes until it is enough, and answers where that is the custom."""
        voice = self._voice(actor)
        while not over():
            try:
                parts = await self._next(actor, actor.socket, 0.02)
            except omq.Timeout:
                continue
            except omq.StateError:
                parts = []
            if parts:
                self._take(actor, parts, "last")
            await self._answer(actor, voice, parts)
            if not parts:
                await self.twin.sleep(0.0005)  # nothing to wait for, or another task's turn

    async def _answer(self, actor: Actor, voice: Voice, parts: list[bytes]) -> None:
        """Replies to a request, whose sender waits for it."""
        if actor.kind == "REP" or (parts and self.plan.kinds == ("REQ", "ROUTER") and actor.kind == "ROUTER"):
            try:
                await self._send(actor, voice, [], SOON, parts[0] if parts else b"")
            except (omq.StateError, omq.UnroutableError):
                pass  # another call was quicker, or the requester waits no longer

    async def _account(self, left: list[Actor], right: list[Actor]) -> None:
        """Every message that was ever accepted comes; what is sent before a close with linger, too."""
        for actor in left + right:
            for _ in range(FINAL if actor.kind in KEEPS else 0):
                await self._send(actor, actor.voice, [], SOON)
        # What a sender in the background has under way comes, too.
        await self._until(lambda: self._all_there(0, 1), "all messages came")
        for actor in left:
            for _ in range(FINAL):
                await self._send(actor, actor.voice, [b"last"], SOON)
            await self._end(actor, "close", SOON / 2)
        # Who is left may have sent to those who close, meanwhile.
        await self._until(lambda: self._all_there(0), "lingering messages came")

    def _all_there(self, *sides: int) -> bool:
        voices = [voice for voice in tuple(self._voices) if voice.keeps and voice.side in sides]
        return not any(self.history.missing(voice.sender) for voice in voices)

    async def _exchange(self, left: Actor, right: Actor) -> None:
        """Messages go over in each direction that there is."""
        if left.kind in FANS_OUT:
            with contextlib.suppress(*self._allowed(right, "subscribe")):
                await self._do_subscribe(right, Step("subscribe", right.number))
            await self.twin.do(left.socket, "wait_subscribed", b"A", timeout=SOON)
        for sender, receiver in ((left, right), (right, left)):
            if sender.kind in SENDS and sender.kind != "REP":
                for _ in range(FINAL):
                    await self._one_message(sender, receiver)

    async def _one_message(self, sender: Actor, receiver: Actor) -> None:
        """One message goes over and comes; where the type may drop, one of several."""
        name = receiver.role.options.get("identity", b"")
        if sender.kind == "ROUTER" and (receiver.kind == "REQ" or (receiver.kind == "ROUTER" and not name)):
            return  # a peer without a request takes nothing; without a message it has no name
        voice = self._voice(sender)
        numbers: set[int] = set()
        end = time.monotonic() + SOON
        while not numbers & self.history.got(voice.sender):
            assert time.monotonic() < end, f"{sender} sent {len(numbers)} messages and {receiver} got none"
            if not numbers or sender.kind not in KEEPS | {"REQ"}:
                try:
                    numbers.add(await self._send(sender, voice, [b"final"], SOON, name))
                except (omq.StateError, omq.UnroutableError) as error:
                    # A REQ waits for a reply, and may have it or learn that it will never come.
                    self.report(f"    {error}")
            await self.twin.sleep(0.0003)

    async def _settle(self) -> None:
        """Everything in the background ends with the sockets."""
        for background in self._background:
            assert await self.twin.join(background, SOON), f"{background} does not end"


def _meet(one: Actor, other: Actor) -> bool:
    """Returns whether one socket dials an endpoint that the other listens on."""
    return bool({*one.connected} & {*other.bound} or {*other.connected} & {*one.bound})
