"""The base class of programs on a bus: callbacks and a loop in one thread, a configuration, and health."""

from __future__ import annotations

import argparse
import inspect
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar, Final

from google.protobuf import json_format
from google.protobuf.message import Message

from omq.errors import OmqError, StateError, UsageError
from omq.goby.config import read_message, read_toml
from omq.goby.dispatch import parse_error_text
from omq.goby.health import (
    HEALTH_REQUEST,
    HEALTH_RESPONSE,
    TERMINATE_REQUEST,
    TERMINATE_RESPONSE,
    process_health,
    terminate_response,
)
from omq.goby.portal import Portal, Subscription
from omq.goby.protobuf import HealthRequest, InterProcessPortalConfig, TerminateRequest
from omq.goby.scheme import SchemeId
from omq.goby.wire import bus_of
from omq.serving.log import log_to_stderr
from omq.unpatched import threading

log = logging.getLogger("omq.goby")

_HOLD_POLL_INTERVAL_S: Final = 0.02
_SIGNAL_POLL_INTERVAL_S: Final = 0.2  # a signal may interrupt another thread

_OPTIONS: Final = frozenset(inspect.signature(Portal).parameters) - {"name"}

Config = dict[str, Any] | Message | str | os.PathLike[str] | None


class Application:
    """A program on a bus (`goby::zeromq::SingleThreadApplication`): subclass it, and call `main` or `run`.

    class Depth(omq.goby.Application):
        frequency = 10.0

        def initialize(self) -> None:
            self.subscribe("ctd", Sample, self.on_sample)

        def loop(self) -> None:
            self.publish("depth", Estimate(depth=self.depth))

    All methods and callbacks are called in the thread that calls `run`. The program reports ready after `initialize`,
    and calls `loop` once the hold is released. It answers health requests. A request on the bus
    (`goby::terminate::request`), SIGTERM or SIGINT ends it in an orderly way. Signals are handled only if the main
    thread calls `run`.

    Class attributes:
        name: The program's name on the bus; `None`: the name of the class.
        frequency: The number of calls of `loop` per second, less than 1,000,000; 0, the default: none.
        config_type: The protobuf class of the configuration; `None`: the configuration is a dictionary.

    Args:
        config: The configuration: a dictionary, or a message of `config_type`; or the path of its file. A file is TOML,
            or, with `config_type` and unless its name ends in `.toml`, text protobuf. `None`: an empty configuration.
            The base class reads `app.name`, `interprocess` (with the names of Goby's `InterProcessPortalConfig`) and
            `frequency`.
        name: The program's name on the bus; `None`: `interprocess.client_name` or `app.name` of the configuration, or
            else the class attribute.
        **portal: Arguments of `Portal`, which override the configuration.

    Attributes:
        config: The configuration: a dictionary, or a message of `config_type`.
        portal: The portal, from `initialize` on.

    Raises:
        UsageError: A value of the configuration is not valid; the text names it. `run` checks those of *portal*.
        TypeError: An argument is unknown.
    """

    name: str | None = None
    frequency: float = 0.0
    config_type: ClassVar[type[Message] | None] = None

    def __init__(self, config: Config = None, *, name: str | None = None, **portal: Any) -> None:
        self.config: Any = self._read(config)
        configured, frequency, interprocess = _common(self.config)
        if interprocess is not None:
            bus = bus_of(interprocess)
            bus_options = {field.name: getattr(bus, field.name) for field in fields(bus)}
            portal = {**bus_options, "manager_timeout": float(interprocess.manager_timeout_seconds), **portal}
            configured = interprocess.client_name or configured
        self.name = name or configured or self.name or type(self).__name__
        frequency = self.frequency if frequency is None else frequency
        if isinstance(frequency, bool) or not isinstance(frequency, int | float) or not 0 <= frequency < 1e6:
            raise UsageError(f"frequency={frequency!r}: must be calls a second, 0 or more, less than 1e6")
        self.frequency = float(frequency)
        for option in portal:
            if option not in _OPTIONS:
                raise TypeError(f"{type(self).__name__}() got an unexpected keyword argument {option!r}")
        self._options = portal
        self._portal: Portal | None = None
        self._quit = threading.Event()
        self._connecting = self._ran = False
        self._status = 0

    def _read(self, config: Config) -> Any:
        if isinstance(config, str | os.PathLike):
            path = Path(config)
            return read_toml(path) if self.config_type is None else read_message(path, self.config_type)
        if config is None:
            return {} if self.config_type is None else self.config_type()
        if not isinstance(config, (dict, Message) if self.config_type is None else self.config_type):
            wanted = "a dictionary" if self.config_type is None else f"a {self.config_type.DESCRIPTOR.full_name}"
            raise UsageError(f"config={config!r}: must be {wanted}, or the path of a file of one")
        return config

    @property
    def portal(self) -> Portal:
        """The portal, from `initialize` on.

        Raises:
            StateError: The program is not connected yet.
        """
        if self._portal is None:
            raise StateError(f"{self.name} does not run yet: subscribe in initialize(), and publish from there on")
        return self._portal

    # ------------------------------------------------------------------ methods to override

    def initialize(self) -> None:
        """Prepares the program, for instance subscribes. Override it; the default does nothing.

        `run` calls it once the program is connected, before it reports ready.
        """

    def loop(self) -> None:
        """Does the periodic work. Override it; the default does nothing.

        `run` calls it `frequency` times per second, once the hold is released. Missed calls are skipped.
        """

    def finalize(self) -> None:
        """Cleans up. Override it; the default does nothing.

        `run` calls it before it closes the portal, also after an exception of `loop` or of a callback.
        """

    def health(self) -> tuple[str, str | None]:
        """Returns the program's health: `ok`, `degraded` or `failed`, and the reason or `None`.

        Override it; the default returns `("ok", None)`. `run` calls it for each health request.
        """
        return "ok", None

    # ------------------------------------------------------------------ methods to call

    def publish(
        self, group: str | int, message: Any, *, scheme: SchemeId | None = None, type_name: str | None = None
    ) -> None:
        """Publishes a message; see `Portal.publish`."""
        self.portal.publish(group, message, scheme=scheme, type_name=type_name)

    def subscribe(
        self,
        group: str | int,
        type: type,
        callback: Callable[[Any], object],
        *,
        scheme: SchemeId | None = None,
        type_name: str | None = None,
    ) -> Subscription:
        """Subscribes with a callback, which is called in the thread that runs the program; see `Portal.subscribe`."""
        return self.portal.subscribe(group, type, callback, scheme=scheme, type_name=type_name)

    def subscribe_regex(
        self,
        callback: Callable[[Any], object],
        group: str = ".*",
        type: str = ".*",
        schemes: SchemeId | Iterable[SchemeId] | None = None,
    ) -> Subscription:
        """Subscribes with a callback to all matching publications; see `Portal.subscribe_regex`."""
        return self.portal.subscribe_regex(group, type, schemes, callback)

    def quit(self, status: int = 0) -> None:
        """Ends `run` after the current method or callback. Any thread may call it.

        Args:
            status: The exit status that `run` returns.
        """
        self._status = status
        self._quit.set()
        if self._portal is not None:
            self._portal._callback_inbox.wake()

    def run(self) -> int:
        """Runs the program until `quit` is called, or a terminate request, SIGTERM or SIGINT arrives.

        An exception of `initialize`, `loop`, `finalize` or a callback ends the program, and is raised here.

        Returns:
            The exit status: that of `quit`, else 0.

        Raises:
            ConnectError: No manager has answered in time.
            UsageError: The program has run already, or an argument of `Portal` is not valid.
            ClosedError: The portal was closed, or has failed.
        """
        if self._ran:
            raise UsageError(f"{self.name} has run already: create another one")
        self._ran = True
        restore = self._set_signal_handlers()
        try:
            with self._connect() as self._portal:
                self._portal._runs_callbacks = False  # `_run_callback` does
                self.subscribe(HEALTH_REQUEST, HealthRequest, self._publish_health)
                self.subscribe(TERMINATE_REQUEST, TerminateRequest, self._handle_terminate)
                self.initialize()
                self.portal.ready()
                try:
                    self._run()
                finally:
                    self.finalize()
        except _Interrupted:
            log.info("%s: ended before it was connected", self.name)
        finally:
            for number, handler in restore.items():
                signal.signal(number, handler)
        return self._status

    def _connect(self) -> Portal:
        """Returns a connected portal; a signal ends the search for a manager."""
        assert self.name is not None
        self._connecting = True
        try:
            if self._quit.is_set():
                raise _Interrupted
            return Portal(self.name, **self._options)
        finally:
            self._connecting = False

    @classmethod
    def main(cls, arguments: Sequence[str] | None = None) -> None:
        """Runs the program from the command line, and ends the process with its exit status.

        Args:
            arguments: The arguments of the command line, without the program's name; `None`: those of the process.

        Raises:
            SystemExit: The program has ended. The status is that of `run`; 2 after a `UsageError`, such as an argument
                that is not valid; 1 after another `OmqError`.
        """
        parser = argparse.ArgumentParser(prog=cls.name or cls.__name__, description=cls.__doc__)
        parser.add_argument("config", nargs="?", help="the configuration's file")
        parser.add_argument("--name", help="its name on the bus")
        parser.add_argument("--platform")
        parser.add_argument("--transport", choices=["ipc", "tcp"])
        parser.add_argument("--socket-name")
        parser.add_argument("--address")
        parser.add_argument("--tcp-port", type=int, dest="port")
        options = {name: value for name, value in vars(parser.parse_args(arguments)).items() if value is not None}
        log_to_stderr("info")
        try:
            sys.exit(cls(options.pop("config", None), **options).run())
        except UsageError as fault:
            parser.error(str(fault))
        except OmqError as fault:
            sys.exit(f"{parser.prog}: {fault}")

    # ------------------------------------------------------------------ how it runs

    def _run(self) -> None:
        period = 1 / self.frequency if self.frequency else None
        due: float | None = None  # when `loop` is to be called
        callbacks_until = 0.0  # callbacks get as much time as `loop`
        while not self._quit.is_set():
            now = time.monotonic()
            if period is None:
                timeout = _SIGNAL_POLL_INTERVAL_S
            elif due is None:
                timeout = 0.0 if self.portal.released else _HOLD_POLL_INTERVAL_S
                due = now if self.portal.released else None
            else:
                timeout = min(max(due - now, 0), _SIGNAL_POLL_INTERVAL_S)
            self._run_callback(timeout)
            if period is None or due is None or self._quit.is_set() or (now := time.monotonic()) < due:
                continue
            if now < callbacks_until and self.portal._callback_inbox.items:
                continue
            self.loop()
            after = time.monotonic()
            callbacks_until = after + (after - now)
            due = max(due + period, after - period)  # missed calls are not made up for

    def _run_callback(self, timeout: float) -> None:
        item = self.portal._callback_inbox.get(timeout)
        if item is None or item[0].ended:
            if self.portal.closed and not self._quit.is_set():
                raise self.portal._closed_error()
            return
        handler, identifier, payload = item
        try:
            message = handler.decode(identifier, payload)
        except Exception as fault:  # of any kind: a custom scheme decodes
            self.portal._dispatcher.parse_errors.note(parse_error_text(identifier, fault))
            return
        assert handler.callback is not None
        handler.callback(message)

    def _publish_health(self, _: HealthRequest) -> None:
        assert self.name is not None
        try:
            answer = process_health(self.name, *self.health())
        except Exception as fault:  # a program whose health() raises has failed, but continues
            log.exception("%s: health() has failed", self.name)
            answer = process_health(self.name, "failed", f"health() has failed: {fault}")
        self.publish(HEALTH_RESPONSE, answer)

    def _handle_terminate(self, request: TerminateRequest) -> None:
        assert self.name is not None
        if (response := terminate_response(request, self.name)) is not None:
            log.info("%s: received a terminate request", self.name)
            self.publish(TERMINATE_RESPONSE, response)
            self.quit()

    def _set_signal_handlers(self) -> dict[int, Any]:
        if threading.current_thread() is not threading.main_thread():
            return {}

        def end(number: int, _: object) -> None:
            # A second signal ends the process at once.
            for each in (signal.SIGTERM, signal.SIGINT):
                signal.signal(each, signal.SIG_DFL)
            if self._connecting:
                raise _Interrupted
            # In another thread, as this one may have the inbox's lock.
            threading.Thread(target=self.quit, daemon=True).start()

        return {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}


class _Interrupted(BaseException):
    """Raised when a signal arrives before the program is connected."""


def _table(config: dict[str, Any], name: str) -> dict[str, Any]:
    """Returns a table of a configuration, or an empty one if it is missing.

    Raises:
        UsageError: The value is not a table.
    """
    table = config.get(name, {})
    if not isinstance(table, dict):
        raise UsageError(f"{name}={table!r}: must be a table")
    return table


def _common(config: Any) -> tuple[str | None, Any, InterProcessPortalConfig | None]:
    """Returns the name, the frequency and the bus of a configuration; `None` for a missing one."""
    if isinstance(config, dict):
        app = _table(config, "app")
        name = app.get("name")
        if "name" in app and not (isinstance(name, str) and name):
            raise UsageError(f"app.name={name!r}: must be a non-empty string")
        if "interprocess" not in config:
            return name, config.get("frequency"), None
        try:
            interprocess = json_format.ParseDict(_table(config, "interprocess"), InterProcessPortalConfig())
        except json_format.ParseError as error:
            raise UsageError(f"interprocess: {error}") from None
        return name, config.get("frequency"), interprocess
    program, bus = getattr(config, "app", None), _field(config, "interprocess")
    return (
        getattr(program, "name", None) or None if isinstance(program, Message) else None,
        _field(config, "frequency"),
        # The program's class may be of another module.
        InterProcessPortalConfig.FromString(bus.SerializeToString()) if isinstance(bus, Message) else None,
    )


def _field(config: Message, name: str) -> Any:
    """Returns a field of a configuration; `None` if it is not set, or is zero and has no presence (proto3)."""
    if name not in config.DESCRIPTOR.fields_by_name:
        return None
    value = getattr(config, name)
    try:
        return value if config.HasField(name) else None
    except ValueError:
        return value or None
