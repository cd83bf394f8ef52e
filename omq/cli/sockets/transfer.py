"""The run of a socket command, from its parsed options to its end."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import click

import omq
from omq.cli.parameters import progress_bar, sigterm_interrupts
from omq.cli.sockets.ending import finish
from omq.cli.sockets.formats import Format, Parts, format_of, parts_of
from omq.cli.sockets.messenger import Messenger
from omq.cli.sockets.options import attach, new_socket, note
from omq.cli.sockets.output import Output, is_terminal
from omq.cli.sockets.pace import Pacer
from omq.cli.sockets.sources import (
    Batches,
    Files,
    decoded,
    limited,
    messages_of,
    one_by_one,
    repeated,
    standard_input,
)
from omq.cli.sockets.table import Flow, SocketRow
from omq.errors import ClosedError, UsageError
from omq.types import TRAITS, SocketType

#: Options of the command that are options of the socket of one type.
OF_TYPE: Final = ("subscribe", "join")
DATAGRAMS: Final = "udp://"
#: Seconds after which a command that sends reports that it has no peer.
NOTE_AFTER_S: Final = 1.0


class SocketCommand:
    """The run of a command.

    Args:
        row: The type.
        options: The values of its options.

    Raises:
        UsageError: The options do not go together.
    """

    def __init__(self, row: SocketRow, options: dict[str, Any]) -> None:
        self._row = row
        self._options = options
        self._count: int | None = options["count"]
        self._group: str | None = options.get("group")
        data, files = options.get("data"), options.get("files", ())
        if data is not None and files:
            raise UsageError("--data does not go with FILE")
        if options.get("with_names") and not files:
            raise UsageError("--with-names is for FILE")
        if options.get("interval") and options.get("rate"):
            raise UsageError("--interval does not go with --rate")
        if options.get("echo") and options.get("command") is not None:
            raise UsageError("--echo does not go with --exec")
        self._replies = bool(options.get("echo")) or options.get("command") is not None
        if self._replies and (data is not None or files):
            raise UsageError(f"--{'echo' if options['echo'] else 'exec'} does not go with --data and FILE")
        self._files = Files(files)
        self._has_files = bool(files)
        name = options["format"] or "text"
        self._in = self._format(options["format"] or ("raw" if files else "text"))
        self._out = self._format("quoted" if name == "text" and is_terminal() else name)
        self._data = None if data is None else messages_of(data, "--data", self._in)
        rate, interval = options.get("rate"), options.get("interval")
        self._interval = 1 / rate if rate else interval or 0.0

    def run(self) -> None:
        """Opens the socket and runs until the end of the input, `--count` messages, or a signal."""
        given: dict[str, Any] = {name: list(self._options[name]) for name in OF_TYPE if name in self._options}
        if self._row.socket_type is SocketType.SUB:
            given["subscribe"] = given["subscribe"] or [b""]
        elif self._row.socket_type is SocketType.STREAM:
            given["stream_notify"] = False
        with sigterm_interrupts():
            socket = new_socket(self._row.socket_type, self._options, **given)
            try:
                self._run(socket)
            finally:
                socket.stop()

    def _run(self, socket: omq.Socket) -> None:
        interrupted = False
        timeout = self._options["timeout"]
        with self._absent_peer_noted(socket):
            try:
                self._transfer(Messenger(socket, timeout, self._group, self._attach(socket)))
            except KeyboardInterrupt:
                interrupted = True
            except click.ClickException:
                if self._row.role is Flow.SEND:
                    finish(socket, interrupted, timeout)  # the input is not valid: what was before it leaves
                raise
            if self._row.role is Flow.RECEIVE:
                socket.stop()
                return
            finish(socket, interrupted, timeout)

    @contextmanager
    def _absent_peer_noted(self, socket: omq.Socket) -> Iterator[None]:
        """Prints after a second, once, that a command that has something to send waits for a peer."""
        endpoints = [*self._options["bind"], *self._options["connect"]]
        sends = self._row.role in (Flow.SEND, Flow.REQUEST, Flow.BOTH) and not self._replies
        sends = sends and self._options.get("wait") != 0
        if self._options["quiet"] or not sends or all(one.startswith(DATAGRAMS) for one in endpoints):
            yield
            return

        def look() -> None:
            with suppress(ClosedError):
                if not socket.closed and not socket.peers:
                    note(f"no peer yet at {', '.join(endpoints)}; waits for one")

        timer = threading.Timer(NOTE_AFTER_S, look)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _attach(self, socket: omq.Socket) -> int | bytes | None:
        """Opens the endpoints; returns the peer that messages are for, if the type names it and there is one only."""
        bind, connect = self._options["bind"], self._options["connect"]
        alone = len(connect) == 1 and not bind
        if isinstance(socket, omq.PEER) and alone:
            return socket.connect_peer(connect[0])
        if self._row.socket_type is SocketType.STREAM and alone:
            attach(socket, self._options, peer_identity=b"peer")
            socket.wait_connected()
            return b"peer"
        attach(socket, self._options)
        return None

    # ------------------------------------------------------------------ directions

    def _transfer(self, messenger: Messenger) -> None:
        match self._row.role:
            case Flow.SEND:
                self._send(messenger, self._count)
            case Flow.RECEIVE:
                self._receive(messenger)
            case Flow.REQUEST:
                self._request(messenger)
            case Flow.REPLY:
                self._reply(messenger)
            case Flow.BOTH if self._replies:
                self._reply(messenger)
            case Flow.BOTH:
                self._send_and_receive(messenger)

    def _send(self, messenger: Messenger, count: int | None) -> None:
        self._wait_for_subscribers(messenger.socket)
        pacer = Pacer(self._interval)
        with self._input(count) as batches:
            for batch in batches:
                if not self._interval:
                    messenger.send(batch)
                    continue
                for message in batch:
                    pacer.wait()
                    messenger.send([message])

    def _wait_for_subscribers(self, socket: omq.Socket) -> None:
        wait = self._options.get("wait", 0)
        connected = self._options["connect"]
        if wait and not (connected and all(one.startswith(DATAGRAMS) for one in connected)):
            if sys.stderr is not None and sys.stderr.isatty() and not self._options["quiet"]:
                note("waits for a subscription; --wait 0 does not")
            socket.wait_subscribed(n=wait, timeout=self._options["timeout"])

    def _receive(self, messenger: Messenger) -> None:
        output = Output(self._out, self._options["quiet"])
        left = self._count
        while left is None:
            output.print(messenger.receive())
        for _ in range(left):
            output.print([messenger.receive_one()])

    def _request(self, messenger: Messenger) -> None:
        output = Output(self._out, self._options["quiet"])
        pacer = Pacer(self._interval)
        with self._input(self._count) as batches:
            for request in one_by_one(batches):
                pacer.wait()
                messenger.send([request])
                output.print([messenger.receive_one()])

    def _reply(self, messenger: Messenger) -> None:
        output = Output(self._out, self._options["quiet"])
        pacer = Pacer(self._interval)
        own = None if self._replies else one_by_one(self._replies_given())
        number = 0
        while self._count is None or number < self._count:
            request = messenger.receive_one()
            output.print([request])
            sender, body = messenger.split(request)
            reply = self._answer(body) if own is None else next(own, None)
            if reply is None:
                raise click.ClickException("there is no reply for the request: the input has ended")
            pacer.wait()
            messenger.send([[*sender, *parts_of(reply)]])
            number += 1

    def _replies_given(self) -> Batches:
        if self._data is not None:
            return repeated(self._data)
        return self._files.batches(self._in, _show_nothing, False) if self._has_files else self._standard_input()

    def _answer(self, body: list[bytes]) -> Parts:
        command = self._options["command"]
        if command is None:
            return body
        done = subprocess.run(
            command, shell=True, input=self._options["delimiter"].join(body), stdout=subprocess.PIPE, check=False
        )
        if done.returncode:
            note(f"--exec {command}: ended with status {done.returncode}")
        return bytes(done.stdout.removesuffix(b"\n"))

    def _send_and_receive(self, messenger: Messenger) -> None:
        """Sends in a thread of its own: neither direction waits for the other one."""
        faults: list[BaseException] = []

        def send() -> None:
            try:
                self._send(messenger, None)
            except ClosedError:
                pass
            except BaseException as fault:
                faults.append(fault)
                messenger.socket.stop()

        sender = threading.Thread(target=send, daemon=True)
        sender.start()
        try:
            self._receive(messenger)
        except ClosedError:
            sender.join()
            raise faults[0] if faults else click.ClickException("the socket was closed") from None
        if self._count == 0 or (self._data is not None and not self._interval):
            sender.join()

    # ------------------------------------------------------------------ input

    @contextmanager
    def _input(self, count: int | None) -> Iterator[Batches]:
        """Opens the input, with a progress bar for files."""
        if self._data is not None:
            again = self._interval or count is not None
            yield limited(repeated(self._data) if again else iter([self._data]), count)
        elif self._has_files and not self._options["quiet"] and threading.current_thread() is threading.main_thread():
            with progress_bar("Sending") as show:
                yield limited(self._files.batches(self._in, show, self._options["with_names"]), count)
        elif self._has_files:
            yield limited(self._files.batches(self._in, _show_nothing, self._options["with_names"]), count)
        else:
            yield limited(self._standard_input(), count)

    def _standard_input(self) -> Batches:
        return decoded(self._in, standard_input(), "standard input")

    def _format(self, name: str) -> Format:
        """Returns a format that splits lines into as many parts as messages of this type have."""
        kind = self._row.socket_type
        traits = TRAITS[kind]
        parts = 0
        if traits.single_part:
            parts = 2 if traits.route is not None and self._group is None and kind is not SocketType.DISH else 1
        return format_of(name, self._options["delimiter"], parts)


def _show_nothing(done: int, total: int) -> None:
    """Is called instead of a progress bar."""
