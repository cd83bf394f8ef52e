"""Reports to systemd, or another service manager, by the protocol of sd_notify(3)."""

from __future__ import annotations

import asyncio
import logging
import os
import time

from omq.unpatched import socket

__all__ = ["ServiceNotifier"]


class ServiceNotifier:
    """Sends the state of this process to the socket of `$NOTIFY_SOCKET`; does nothing without that variable.

    From `ping_watchdog` on, it sends two keep-alive pings in each interval of `$WATCHDOG_USEC`, as long as the event
    loop runs.

    Args:
        log: The log. The first state that cannot be sent is logged.
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        address = os.environ.get("NOTIFY_SOCKET", "")
        # "@" is the zero byte of Linux's abstract addresses.
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._interval = _watchdog_interval(log) if address else None
        self._timer: asyncio.TimerHandle | None = None
        self._failed = False

    def ready(self) -> None:
        """Reports that the server accepts clients, at the start or after a reload."""
        self._send("READY=1")

    def reloading(self) -> None:
        """Reports that the server reads its configuration again; `ready` follows."""
        # The time is for Type=notify-reload, which compares it with that of its signal.
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self) -> None:
        """Reports that the server ends; nothing is reported after it."""
        self._send("STOPPING=1")
        self._address = ""
        if self._timer is not None:
            self._timer.cancel()

    def ping_watchdog(self) -> None:
        """Sends a keep-alive ping now, and again after each half of the interval, until `stopping`."""
        if self._interval is not None:
            self._send("WATCHDOG=1")
            self._timer = asyncio.get_running_loop().call_later(self._interval, self.ping_watchdog)

    def _send(self, state: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
                sock.setblocking(False)  # a manager that does not read must not stop the server
                sock.sendto(state.encode(), self._address)
        except BlockingIOError:
            pass
        except (OSError, ValueError) as error:
            if not self._failed:
                self._log.warning("NOTIFY_SOCKET=%r: %s; the service manager gets no reports", self._address, error)
            self._failed = True


def _watchdog_interval(log: logging.Logger) -> float | None:
    """Returns the seconds between two keep-alive pings; `None` if the manager does not expect them of this process."""
    text, process = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID", "")
    if not text or process not in ("", str(os.getpid())):
        return None
    if not text.isdecimal() or not int(text):
        log.warning("WATCHDOG_USEC=%r: must be a number of microseconds; it is ignored", text)
        return None
    return int(text) / 2e6
