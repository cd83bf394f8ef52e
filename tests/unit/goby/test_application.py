"""The base class of programs on a bus."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import omq
from omq.goby import Application, Daemon, Portal
from omq.goby.protobuf import (
    HEALTH__FAILED,
    GobyDaemonConfig,
    HealthRequest,
    ProcessHealth,
    TerminateRequest,
    TerminateResponse,
)
from tests.support.fork_server import ForkedProcess
from tests.support.waits import until

pytestmark = pytest.mark.timeout(60)


class Echo(Application):
    """Answers what it receives, and counts."""

    frequency = 50.0

    def initialize(self) -> None:
        self.threads = {threading.get_ident()}
        self.turns = 0
        self.seen: list[str] = []
        self.subscribe("in", str, self.receive)
        self.subscribe_regex(lambda publication: self.seen.append(publication.type), "in")

    def receive(self, text: str) -> None:
        self.threads.add(threading.get_ident())
        self.publish("out", text.upper())

    def loop(self) -> None:
        self.threads.add(threading.get_ident())
        self.turns += 1
        assert self.portal.released, "it begins with the release"

    def finalize(self) -> None:
        self.threads.add(threading.get_ident())
        self.publish("out", "bye")

    def health(self) -> tuple[str, str | None]:
        return "degraded", "tired"


def run(application: Application) -> tuple[threading.Thread, list[int]]:
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(application.run()))
    thread.start()
    return thread, found


class Once(Application):
    """Ends one of its subscriptions."""

    how = "close"

    def initialize(self) -> None:
        self.received: list[str] = []
        self.once = self.subscribe("once", str, self.receive_once)
        self.subscribe("more", str, self.received.append)

    def receive_once(self, text: str) -> None:
        self.received.append(text)
        if self.how == "close":
            self.once.close()
        else:
            self.portal.unsubscribe("once", str)


@pytest.mark.parametrize("how", ["close", "unsubscribe"])
def test_one_subscription_ends_by_itself(tmp_path: Path, how: str) -> None:
    with Daemon(socket_name=tmp_path / "g", required_clients=["Once", "a"]):
        once = Once(socket_name=tmp_path / "g")
        once.how = how
        thread, status = run(once)
        with Portal("a", socket_name=tmp_path / "g") as a:
            a.ready()
            a.wait_released(10)
            for text in "12":
                a.publish("once", text)
            a.publish("more", "3")
            until(lambda: "3" in once.received)
            assert once.received == ["1", "3"]
            with pytest.raises(omq.UsageError, match="callback"):
                once.once.recv(timeout=0)
            a.publish("goby::terminate::request", TerminateRequest(target_name="Once"))
            thread.join(20)
            assert status == [0]


def test_a_program_whose_portal_is_closed_ends(tmp_path: Path) -> None:
    class Leaves(Application):
        def initialize(self) -> None:
            self.portal.close()

    with Daemon(socket_name=tmp_path / "g"), pytest.raises(omq.ClosedError):
        Leaves(socket_name=tmp_path / "g").run()


class Slow(Application):
    """Its loop takes longer than its period."""

    frequency = 100.0

    def initialize(self) -> None:
        self.received = 0
        self.turns = 0
        self.subscribe("in", str, self.receive)

    def receive(self, text: str) -> None:
        self.received += 1
        time.sleep(0.001)

    def loop(self) -> None:
        self.turns += 1
        time.sleep(0.05)


def test_a_loop_that_is_too_slow_shares_its_time_with_callbacks(tmp_path: Path) -> None:
    with Daemon(socket_name=tmp_path / "g", required_clients=["Slow", "a"]):
        slow = Slow(socket_name=tmp_path / "g")
        thread, status = run(slow)
        with Portal("a", socket_name=tmp_path / "g") as a:
            a.ready()
            a.wait_released(10)
            until(lambda: slow.turns > 2)
            before = slow.turns
            for number in range(300):
                a.publish("in", str(number))
            until(lambda: slow.received == 300)
            assert 2 < slow.turns - before < 40, "one turn for each message would be 300"
            a.publish("goby::terminate::request", TerminateRequest(target_name="Slow"))
            thread.join(20)
            assert status == [0]


def test_an_application_receives_publishes_and_ends(tmp_path: Path) -> None:
    with Daemon(socket_name=tmp_path / "g", required_clients=["Echo", "a"]) as daemon:
        echo = Echo(socket_name=tmp_path / "g")
        thread, status = run(echo)
        with Portal("a", socket_name=tmp_path / "g") as a:
            out, healths = a.subscribe("out", str), a.subscribe("goby::health::response", ProcessHealth)
            ends = a.subscribe("goby::terminate::response", TerminateResponse)
            until(lambda: daemon.missing == ["a"])
            assert echo.turns == 0
            a.ready()
            a.publish("in", "hello")
            assert out.recv(timeout=10) == "HELLO"
            until(lambda: echo.turns > 3)
            a.publish("goby::health::request", HealthRequest())
            answers = {health.name: health for health in (healths.recv(timeout=10) for _ in range(2))}
            assert (answers["Echo"].main.state, answers["Echo"].main.error_message) == (2, "tired")
            assert answers["gobyd"].main.state == 1
            a.publish("goby::terminate::request", TerminateRequest(target_name="other"))
            a.publish("goby::terminate::request", TerminateRequest(target_name="Echo"))
            assert ends.recv(timeout=10) == TerminateResponse(target_name="Echo", target_pid=os.getpid())
            assert out.recv(timeout=10) == "bye"
        thread.join(10)
        assert status == [0]
        assert echo.seen == ["CSTR"]
        assert len(echo.threads) == 1, "all in one thread"


def test_the_loop_of_an_application_keeps_its_frequency(bus_options: dict[str, Any]) -> None:
    class Ticks(Application):
        frequency = 100.0
        times: list[float] = []  # noqa: RUF012

        def loop(self) -> None:
            self.times.append(time.monotonic())
            if len(self.times) == 51:
                self.quit(3)

    ticks = Ticks(**bus_options)
    assert ticks.run() == 3
    assert 0.45 < ticks.times[-1] - ticks.times[0] < 5


def test_an_error_ends_it(bus_options: dict[str, Any]) -> None:
    class Bad(Application):
        frequency = 1.0
        ended = False

        def loop(self) -> None:
            raise RuntimeError("no")

        def finalize(self) -> None:
            self.ended = True

    bad = Bad(**bus_options)
    with pytest.raises(RuntimeError, match="no"):
        bad.run()
    assert bad.ended
    assert bad.portal.closed


def test_configurations(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(
        'depth = 5\nfrequency = 2\n[app]\nname = "diver"\n[interprocess]\ntransport = "TCP"\ntcp_port = 99\n'
    )
    one = Echo(tmp_path / "a.toml")
    assert (one.name, one.frequency, one.config["depth"]) == ("diver", 2.0, 5)
    assert one._options["transport"] == "tcp"
    assert one._options["port"] == 99
    assert Echo(tmp_path / "a.toml", name="other").name == "other"

    class Configured(Application):
        config_type = GobyDaemonConfig

    (tmp_path / "b.cfg").write_text('app { name: "diver" } router_threads: 3 interprocess { platform: "auv" }')
    two = Configured(tmp_path / "b.cfg")
    assert (two.name, two.config.router_threads, two._options["platform"]) == ("diver", 3, "auv")
    assert Configured().config == GobyDaemonConfig()
    for content, named in (('frequency = "x"', "frequency"), ("[interprocess]\nx = 1", "interprocess"), ("[", "TOML")):
        (tmp_path / "c.toml").write_text(content)
        with pytest.raises(omq.UsageError, match=named):
            Echo(tmp_path / "c.toml")


@contextmanager
def program(text: str, *arguments: str) -> Iterator[ForkedProcess]:
    """A program in a process of its own, which is killed if it has not ended."""
    process = ForkedProcess("-c", text, *arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


PROGRAM = """
import omq.goby
class Beacon(omq.goby.Application):
    frequency = 20.0
    def loop(self):
        self.publish("beacon", "here")
Beacon.main()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_program_ends_by_a_signal(bus_options: dict[str, Any], number: signal.Signals) -> None:
    at = f"--socket-name={bus_options['socket_name']}"
    with Portal("a", **bus_options) as a, program(PROGRAM, at, "--name=b1") as process:
        subscription = a.subscribe("beacon", str)
        assert subscription.recv(timeout=20) == "here"
        process.send_signal(number)
        _, err = process.communicate(timeout=20)
        assert process.returncode == 0, err
        assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [(["--transport=pgm"], 2, "--transport"), (["/nowhere.toml"], 2, "/nowhere.toml"), (["--platform=a/b"], 2, "a/b")],
)
def test_a_command_line_that_does_not_fit_is_reported(
    arguments: list[str], status: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        Echo.main(arguments)
    assert ended.value.code == status
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"interprocess": 3}, "interprocess=3: must be a table"),
        ({"app": "x"}, "app='x': must be a table"),
        ({"app": {"name": ""}}, "app.name=''"),
        ({"app": {"name": 3}}, "app.name=3"),
        ({"interprocess": {"platfrm": "x"}}, "platfrm"),
        ({"frequency": 10**400}, "frequency=10000"),
        ({"frequency": float("nan")}, "frequency=nan"),
        ({"frequency": True}, "frequency=True"),
        (5, "config=5: must be a dictionary, or the path of a file"),
        ([1], r"config=\[1\]: must be"),
        (b"a.toml", "config=b'a.toml': must be"),
    ],
)
def test_a_configuration_that_does_not_fit_is_named(config: Any, text: str) -> None:
    with pytest.raises(omq.UsageError, match=text):
        Echo(config)


def test_a_configuration_is_of_its_type() -> None:
    class Configured(Application):
        config_type = GobyDaemonConfig

    for config in ({"router_threads": 3}, HealthRequest(), 5):
        with pytest.raises(omq.UsageError, match=r"must be a goby\.apps\.zeromq\.protobuf\.GobyDaemonConfig"):
            Configured(config)  # type: ignore[arg-type]


def test_a_keyword_that_no_portal_has_is_reported_at_once() -> None:
    with pytest.raises(TypeError, match=r"Echo.* 'platfrom'"):
        Echo(platfrom="auv")


def test_what_needs_the_bus_is_refused_before_the_program_runs() -> None:
    echo = Echo()
    for call in (
        lambda: echo.publish("g", "x"),
        lambda: echo.subscribe("g", str, print),
        lambda: echo.subscribe_regex(print),
    ):
        with pytest.raises(omq.StateError, match=r"Echo does not run yet: subscribe in initialize\(\)"):
            call()


@pytest.mark.parametrize("answer", [("bogus", None), KeyError("bogus"), None])
def test_a_program_that_cannot_report_its_health_has_failed_and_goes_on(
    bus_options: dict[str, Any], answer: Any
) -> None:
    class Ill(Echo):
        def health(self) -> tuple[str, str | None]:
            if isinstance(answer, BaseException):
                raise answer
            return answer  # type: ignore[no-any-return]

    with Portal("a", **bus_options) as a:
        healths, out = a.subscribe("goby::health::response", ProcessHealth), a.subscribe("out", str)
        a.wait_released(10)
        ill = Ill(**bus_options)
        thread, status = run(ill)
        try:
            until(lambda: getattr(ill, "turns", 0) > 0)
            a.publish("goby::health::request", HealthRequest())
            health = next(one for one in healths if one.name == "Ill")  # the gobyd answers, too
            assert health.main.state == HEALTH__FAILED
            a.publish("in", "still here")
            assert out.recv(timeout=10) == "STILL HERE"
        finally:
            ill.quit()
            thread.join(10)
        assert status == [0]


WAITS = """
import omq.goby, sys
class W(omq.goby.Application): ...
print("looks", flush=True)
sys.exit(W(socket_name=sys.argv[1], manager_timeout=60).run())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_program_that_looks_for_its_gobyd_ends_by_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    with program(WAITS, str(tmp_path / "g")) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "looks\n"
        until(lambda: len(os.listdir(f"/proc/{process.pid}/task")) > 1, "its sockets are there")
        process.send_signal(number)
        assert process.wait(10) == 0


HANGS = """
import omq.goby, sys, time
class H(omq.goby.Application):
    frequency = 10
    def loop(self):
        print("hangs", flush=True)
        while True:
            time.sleep(1)
sys.exit(H(socket_name=sys.argv[1]).run())
"""


def test_the_second_signal_does_not_wait_for_the_orderly_end(bus_options: dict[str, Any]) -> None:
    with program(HANGS, str(bus_options["socket_name"])) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "hangs\n"
        process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == -signal.SIGTERM


def test_a_program_runs_once(bus_options: dict[str, Any]) -> None:
    echo = Echo(**bus_options)
    thread, status = run(echo)
    until(lambda: getattr(echo, "turns", 0) > 0)
    echo.quit(3)
    thread.join(10)
    assert status == [3]
    with pytest.raises(omq.UsageError, match="has run already"):
        echo.run()
