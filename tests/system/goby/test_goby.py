"""`omq goby` as a user runs it: a bus recorded, replayed and watched."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from omq.cli.goby import goby as command
from omq.cli.goby import line_of
from omq.goby import Daemon, Portal, Received
from omq.goby.protobuf import TerminateRequest
from omq.goby.record import Recorder, Recording, publication_of
from tests.support.fork_server import ForkedProcess
from tests.support.parameters import each_value_once
from tests.support.waits import until

pytestmark = pytest.mark.timeout(60)

MAIN = "from omq.cli.main import main; main()"


def start(*arguments: str) -> ForkedProcess:
    return ForkedProcess("-c", MAIN, "goby", *arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def recording_of(path: Path) -> list[tuple[int, bytes]]:
    with Recording(path) as recording:
        return list(recording)


def test_a_bus_is_recorded_and_watched(tmp_path: Path) -> None:
    at = f"--socket-name={tmp_path}/g"
    with Daemon(socket_name=tmp_path / "g", required_clients=["omq_goby_log", "omq_goby_sniff"]) as daemon:
        log = start("log", str(tmp_path / "log"), at, "--group", "nav|end")
        sniff = start("sniff", at, "--count=3", "--import=omq.goby.protobuf", "--scheme=CSTR", "--scheme=PROTOBUF")
        try:
            with Portal("a", socket_name=tmp_path / "g") as a:
                a.wait_released(20)
                assert daemon.missing == []
                for number in range(5):
                    a.publish("nav", {"n": number})
                a.publish("other", "text")
                a.publish("end", TerminateRequest(target_pid=7))
                a.publish("end", b"\1\2", scheme=1, type_name="Unknown")
                out, err = sniff.communicate(timeout=20)
                assert sniff.returncode == 0, err
                until(
                    lambda: len(recording_of(tmp_path / "log")) == 7, "the log's flush, a moment after the last message"
                )
            log.send_signal(signal.SIGTERM)
            _, err = log.communicate(timeout=20)
            assert log.returncode == 0, err
            assert "7 publications recorded, 0 dropped" in err
        finally:
            for process in (log, sniff):
                process.kill()
                process.communicate()
    lines = out.splitlines()
    assert lines[0].endswith(f"{os.getpid()} other CSTR CSTR (5 bytes) 'text'")
    assert lines[1].endswith("end PROTOBUF goby.middleware.protobuf.TerminateRequest (2 bytes) target_pid: 7")
    assert lines[2].endswith("end PROTOBUF Unknown (2 bytes) 01 02")
    found = [publication_of(frame) for _, frame in recording_of(tmp_path / "log")]
    assert [one.group for one in found] == ["nav"] * 5 + ["end"] * 2
    assert all(one.pid == os.getpid() for one in found)


def recorded(path: Path, gap: float, count: int = 5) -> None:
    with Recorder(path) as recorder:
        for number in range(count):
            recorder.append(b"/nav/CSTR/CSTR/1/a/\0%d\0" % number, int(1e18 + number * gap * 1e9))
        recorder.append(b"/raw/450/Q/1/a/\0\0\1", int(1e18 + count * gap * 1e9))


@pytest.mark.parametrize(
    ("speed", "least", "most"), [("1", 0.5, 10), pytest.param("5", 0.1, 10, marks=pytest.mark.slow), ("0", 0, 10)]
)
def test_a_recording_is_played_with_its_timing(
    tmp_path: Path, bus_options: dict[str, Any], speed: str, least: float, most: float
) -> None:
    recorded(tmp_path / "log", 0.1)
    with Portal("a", **bus_options) as a:
        every = a.subscribe_regex("nav|raw")
        a.wait_released(10)
        play = start("play", str(tmp_path / "log"), f"--socket-name={bus_options['socket_name']}", f"--speed={speed}")
        first = every.recv(timeout=20)
        began = time.monotonic()
        got = [first, *(every.recv(timeout=10) for _ in range(5))]
        took = time.monotonic() - began
        _, err = play.communicate(timeout=20)
        assert play.returncode == 0, err
        assert "6 publications played" in err
    assert got == [*(("nav", "CSTR", "CSTR", b"%d\0" % number) for number in range(5)), ("raw", "450", "Q", b"\0\1")]
    assert {one.pid for one in got} == {play.pid}
    assert least * 0.9 <= took <= most


@pytest.mark.parametrize(
    ("group", "played"),
    [
        (".*", 1),
        pytest.param("(?!x).*", 1, marks=pytest.mark.slow),
        ("goby::terminate::.*|nav", 2),
        pytest.param("goby::(terminate|x)::.*|nav", 2, marks=pytest.mark.slow),
    ],
)
def test_what_ended_programs_then_ends_none_now(
    tmp_path: Path, bus_options: dict[str, Any], group: str, played: int
) -> None:
    with Recorder(tmp_path / "log") as recorder:
        head = b"/goby::terminate::request/PROTOBUF/goby.middleware.protobuf.TerminateRequest/1/a/\0"
        recorder.append(head + TerminateRequest(target_pid=1).SerializeToString(), 1)
        recorder.append(b"/goby::health::response/CSTR/CSTR/1/a/\0old\0", 2)
        recorder.append(b"/nav/CSTR/CSTR/1/a/\0new\0", 3)
    with Portal("a", **bus_options) as a:
        every = a.subscribe_regex("goby::.*|nav")
        a.wait_released(10)
        play = start(
            "play", str(tmp_path / "log"), f"--socket-name={bus_options['socket_name']}", "--speed=0", "--group", group
        )
        got = [every.recv(timeout=20) for _ in range(played)]
        _, err = play.communicate(timeout=20)
    assert play.returncode == 0, err
    assert f"{played} publications played" in err
    assert ("left out" in err) == (played == 1)
    assert [one.group for one in got] == ["goby::terminate::request", "nav"][-played:]


def test_groups_that_are_called_alike_are_played(tmp_path: Path, bus_options: dict[str, Any]) -> None:
    with Recorder(tmp_path / "log") as recorder:
        for number, group in enumerate([b"goby::healthcare", b"goby::health::report", b"goby::terminated"]):
            recorder.append(b"/%s/CSTR/CSTR/1/a/\0x\0" % group, number)
    with Portal("a", **bus_options) as a:
        every = a.subscribe_regex("goby::.*")
        a.wait_released(10)
        play = start("play", str(tmp_path / "log"), f"--socket-name={bus_options['socket_name']}", "--speed=0")
        assert [every.recv(timeout=20).group for _ in range(2)] == ["goby::healthcare", "goby::terminated"]
        _, err = play.communicate(timeout=20)
    assert "1 of goby::terminate and goby::health are left out" in err


@each_value_once(speed=["0", "1"], number=[signal.SIGTERM, signal.SIGINT])
def test_a_player_whose_gobyd_is_gone_ends_by_a_signal(tmp_path: Path, number: signal.Signals, speed: str) -> None:
    recorded(tmp_path / "log", 0.05, count=2000)
    with Daemon(socket_name=tmp_path / "g"), Portal("a", socket_name=tmp_path / "g") as a:
        texts = a.subscribe("nav", str)
        a.wait_released(10)
        play = start("play", str(tmp_path / "log"), f"--socket-name={tmp_path}/g", f"--speed={speed}")
        texts.recv(timeout=20)
    try:
        time.sleep(0.2)  # it may notice the loss; the signal ends it either way
        play.send_signal(number)
        began = time.monotonic()
        _, err = play.communicate(timeout=20)
        assert time.monotonic() - began < 10
        assert play.returncode in (0, 1), err
        assert play.returncode == 0 or "were not sent within" in err
    finally:
        play.kill()
        play.communicate()


def test_what_is_damaged_is_played_as_far_as_it_is_good(tmp_path: Path, bus_options: dict[str, Any]) -> None:
    recorded(tmp_path / "log", 0, count=1000)
    whole = (tmp_path / "log").read_bytes()
    (tmp_path / "log").write_bytes(whole[:-3])
    with Portal("a", **bus_options) as a:
        texts = a.subscribe("nav", str)
        a.wait_released(10)
        play = start("play", str(tmp_path / "log"), f"--socket-name={bus_options['socket_name']}", "--speed=0")
        assert [texts.recv(timeout=20) for _ in range(1000)] == [f"{number}" for number in range(1000)]
        _, err = play.communicate(timeout=20)
    assert play.returncode == 0
    assert "cut short: nothing after it is played" in err


def test_a_record_that_is_no_publication_is_passed_over(tmp_path: Path, bus_options: dict[str, Any]) -> None:
    with Recorder(tmp_path / "log") as recorder:
        recorder.append(b"no publication", 1)
        recorder.append(b"/nav/CSTR/CSTR/1/a/\0text\0", 2)
    with Portal("a", **bus_options) as a:
        texts = a.subscribe("nav", str)
        a.wait_released(10)
        play = start("play", str(tmp_path / "log"), f"--socket-name={bus_options['socket_name']}", "--speed=1e-9")
        assert texts.recv(timeout=20) == "text"
        _, err = play.communicate(timeout=20)
    assert play.returncode == 0
    assert f"{tmp_path}/log: the record before byte 45 is skipped: a publication has no NUL" in err


def test_a_player_that_would_wait_for_ages_ends_by_a_signal(tmp_path: Path, bus_options: dict[str, Any]) -> None:
    recorded(tmp_path / "log", 1.0)
    with Portal("a", **bus_options) as a:
        texts = a.subscribe("nav", str)
        a.wait_released(10)
        play = start("play", str(tmp_path / "log"), f"--socket-name={bus_options['socket_name']}", "--speed=1e-300")
        assert texts.recv(timeout=20) == "0"
        play.send_signal(signal.SIGTERM)
        _, err = play.communicate(timeout=20)
    assert play.returncode == 0, err
    assert "1 publications played" in err


def test_what_is_shown_stays_in_its_line() -> None:
    publication = Received("a\nb", "CSTR", "c\x1b[31mred", b"text\0")
    line = line_of(publication, 0.0)
    assert line.isprintable()
    assert line.endswith(r"a\nb CSTR c\x1b[31mred (5 bytes) 'text'")


def test_a_logger_ends_in_time_under_a_flood(tmp_path: Path, bus_options: dict[str, Any]) -> None:
    ended = threading.Event()

    def flood() -> None:
        with Portal("f", **bus_options) as portal:
            portal.wait_released(10)
            while not ended.is_set():
                portal.publish("nav", "x")

    flooding = [threading.Thread(target=flood) for _ in range(2)]
    log = start("log", str(tmp_path / "log"), f"--socket-name={bus_options['socket_name']}")
    try:
        for thread in flooding:
            thread.start()
        until(lambda: (tmp_path / "log").exists() and (tmp_path / "log").stat().st_size > 100_000)
        began = time.monotonic()
        log.send_signal(signal.SIGTERM)
        _, err = log.communicate(timeout=30)
        assert time.monotonic() - began < 20
        assert "publications recorded" in err
    finally:
        ended.set()
        for thread in flooding:
            thread.join()
        log.kill()
        log.communicate()


def test_missing_clients_are_named(tmp_path: Path) -> None:
    with Daemon(socket_name=tmp_path / "g", required_clients=["a", "b"]):
        missing = start("missing", f"--socket-name={tmp_path}/g")
        out, err = missing.communicate(timeout=20)
        assert (missing.returncode, out) == (0, "a\nb\n"), err


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["sniff", "--group=("], 2, "group"),
        (["sniff", "--scheme=NONE"], 2, "scheme"),
        (["sniff", "--import=no.such.module"], 2, "--import"),
        (["sniff", "--count=0"], 2, "--count"),
        (["log", "/nowhere/at/all"], 1, "/nowhere/at/all"),
        (["play", "/nowhere/at/all"], 2, "/nowhere/at/all"),
        (["play", "/dev/null"], 2, "/dev/null"),
        (["play", __file__, "--speed=nan"], 2, "--speed"),
        (["sniff", "--seconds=inf"], 2, "--seconds"),
    ],
)
def test_what_does_not_fit_is_reported(
    bus_options: dict[str, Any], arguments: list[str], status: int, text: str
) -> None:
    result = CliRunner().invoke(command, [*arguments, f"--socket-name={bus_options['socket_name']}"])
    assert (result.exit_code, text in result.output) == (status, True), result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize("name", ["sniff", "missing"])
def test_a_missing_gobyd_is_reported(tmp_path: Path, name: str) -> None:
    result = CliRunner().invoke(command, [name, f"--socket-name={tmp_path}/g", "--manager-timeout=0.1"])
    assert result.exit_code == 1
    assert f"{tmp_path}/g.manager" in result.output
    assert "--socket-name" in result.output


@pytest.mark.parametrize(
    ("publication", "text"),
    [
        (Received("g", "CSTR", "CSTR", b"\xff\0"), "does not parse"),
        (Received("g", "JSON", "nlohmann::json", b"\x05\0\0\0\0"), "{}"),
        (Received("g", "JSON", "nlohmann::json", b""), "does not parse"),
        (Received("g", "PROTOBUF", "goby.middleware.protobuf.TerminateRequest", b"garbage"), "does not parse"),
        (Received("g", "CSTR", "CSTR", b"x" * 500), "x..."),
        (Received("g", "99", "T", bytes(500)), "00 00"),
    ],
)
def test_every_payload_has_a_line(publication: Received, text: str) -> None:
    line = line_of(publication, 1.5)
    assert text in line
    assert f"({len(publication.data)} bytes)" in line
    assert "\n" not in line
    assert len(line) < 300


def test_a_held_command_ends_by_a_signal(tmp_path: Path) -> None:
    recorded(tmp_path / "log", 0)
    with Daemon(socket_name=tmp_path / "g", required_clients=["never", "omq_goby_play"]) as daemon:
        play = start("play", str(tmp_path / "log"), f"--socket-name={tmp_path}/g")
        try:
            until(lambda: daemon.missing == ["never"])
            play.send_signal(signal.SIGINT)
            assert play.wait(20) == 0
        finally:
            play.kill()
            play.communicate()


@each_value_once(name=["log", "play", "sniff"], number=[signal.SIGTERM, signal.SIGINT])
def test_a_command_that_looks_for_the_manager_ends_by_a_signal(
    tmp_path: Path, name: str, number: signal.Signals
) -> None:
    file = [] if name == "sniff" else [str(tmp_path / "log")]
    recorded(tmp_path / "log", 0)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{tmp_path}/g.manager")
        listener.listen()
        listener.settimeout(20)
        looking = start(name, *file, f"--socket-name={tmp_path}/g", "--manager-timeout=50")
        try:
            with listener.accept()[0] as silent:
                assert silent.recv(10)
                looking.send_signal(number)
                assert looking.wait(10) == (-number if number == signal.SIGTERM else 130)
        finally:
            looking.kill()
            output, errors = looking.communicate()
    assert "Traceback" not in output + errors


def test_what_this_program_would_not_publish_is_played_as_it_was(tmp_path: Path, bus_options: dict[str, Any]) -> None:
    frames = [b"/nav/%s/CSTR/1/a/\0x\0" % scheme for scheme in (b"CSTR", b"-3", b"FOO", b"99999999999", b"CSTR")]
    with Recorder(tmp_path / "log") as recorder:
        for number, frame in enumerate(frames):
            recorder.append(frame, number)
    with Portal("a", **bus_options) as a:
        every = a.subscribe_regex("nav")
        a.wait_released(10)
        play = start("play", str(tmp_path / "log"), f"--socket-name={bus_options['socket_name']}", "--speed=0")
        assert [every.recv(timeout=20) for _ in frames] == [publication_of(frame) for frame in frames]
        _, err = play.communicate(timeout=20)
    assert play.returncode == 0
    assert "5 publications played" in err


def test_two_loggers_do_not_share_a_file(tmp_path: Path, bus_options: dict[str, Any]) -> None:
    first = start("log", str(tmp_path / "log"), f"--socket-name={bus_options['socket_name']}")
    try:
        until((tmp_path / "log").exists)
        second = start("log", str(tmp_path / "log"), f"--socket-name={bus_options['socket_name']}")
        _, err = second.communicate(timeout=20)
        assert second.returncode == 2
        assert "another process records into it" in err
        first.send_signal(signal.SIGTERM)
        assert first.wait(20) == 0
    finally:
        first.kill()
        first.communicate()


def test_a_closed_pipe_is_not_an_error(tmp_path: Path, bus_options: dict[str, Any]) -> None:
    sniff = start("sniff", f"--socket-name={bus_options['socket_name']}", "--log-level=error")
    assert sniff.stdout is not None
    try:
        with Portal("a", **bus_options) as a:
            a.wait_released(10)

            def is_logged() -> bool:
                a.publish("g", "x")
                return sniff.poll() is not None

            sniff.stdout.close()
            sniff.stdout = None
            until(is_logged)
        _, err = sniff.communicate(timeout=20)
        assert err == ""
    finally:
        sniff.kill()
        sniff.communicate()


def test_a_logger_that_is_killed_in_steady_traffic_loses_a_moment(tmp_path: Path, bus_options: dict[str, Any]) -> None:
    logger = start("log", str(tmp_path / "log"), f"--socket-name={bus_options['socket_name']}")
    try:
        until((tmp_path / "log").exists)
        with Portal("a", **bus_options) as a:
            a.wait_released(10)

            def recorded_some() -> bool:
                a.publish("nav", "x")
                time.sleep(0.02)  # so often that the logger never has to wait for long
                return (tmp_path / "log").stat().st_size > 200

            until(recorded_some, bound=10)
    finally:
        logger.kill()
        logger.communicate()
    with Recording(tmp_path / "log") as recording:
        assert list(recording)
