"""`omq ping`, with peers of omq and of libzmq."""

from __future__ import annotations

import os
import re
import signal
import threading
from pathlib import Path

import zmq

import omq
from tests.system.cli.command_process import BOUND, failed, finished, on_terminal, run, screen_of, start

LINE = re.compile(r"seq=(\d+) time=(\d+\.\d{3}) ms")
FIGURES = re.compile(r"round trip min / p50 / p99 / max = (\S+) / (\S+) / (\S+) / (\S+) ms")


def test_each_round_trip_is_a_line_and_the_figures_come_last(free_place: str) -> None:
    server = start("ping", "--serve", free_place, "-n", "5")
    head, *lines, mark, counts, figures = (
        run("ping", free_place, "-n", "5", "-i", "0.01", "-s", "100").decode().split("\n")[:-1]
    )
    assert head == f"PING {free_place}: 100 bytes"
    found = [LINE.fullmatch(line) for line in lines]
    assert [one and int(one[1]) for one in found] == [1, 2, 3, 4, 5]
    assert mark == f"--- {free_place} ping statistics ---"
    assert counts.startswith("5 sent, 5 received, 0% loss, time ")
    times = sorted(float(one[2]) for one in found if one)
    last = FIGURES.fullmatch(figures)
    assert last is not None
    assert [float(value) for value in last.groups()] == [times[0], times[2], times[4], times[4]]
    assert finished(server) == b""


def test_a_server_of_libzmq_that_loses_replies() -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        port = router.bind_to_random_port("tcp://127.0.0.1")

        def serve() -> None:
            for number in range(4):
                parts = router.recv_multipart()
                if number != 1:
                    router.send_multipart(parts)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        text = run("ping", f"tcp://127.0.0.1:{port}", "-n", "4", "-i", "0", "-t", "0.3").decode()
        thread.join(BOUND)
    assert "seq=2 no reply within 0.3 s\n" in text
    assert "4 sent, 3 received, 25% loss" in text


def test_without_a_reply_the_status_is_1_and_the_reason_is_printed(free_place: str, tmp_path: Path) -> None:
    text = run("ping", free_place, "-n", "2", "-i", "0", "-t", "0.3", status=1).decode()
    assert "seq=1 not connected: [Errno 111] connection refused\n" in text
    assert "2 sent, 0 received, 100% loss" in text
    assert "min" not in text
    run("keygen", tmp_path / "key")
    with omq.REP(bind="tcp://127.0.0.1:*") as rep:
        words = ("--curve-server-key-file", tmp_path / "key", "-n", "1", "-t", "1")
        assert "mechanism is NULL" in run("ping", rep.endpoints[0], *words, status=1).decode()


def test_a_signal_ends_it_with_the_figures(free_place: str) -> None:
    server = start("ping", "--serve", free_place)
    process = start("ping", free_place, "-i", "0.01")
    while b"seq=3 time" not in process.stdout.readline():
        pass
    os.kill(process.pid, signal.SIGINT)
    assert b"0% loss" in finished(process)
    os.kill(server.pid, signal.SIGTERM)
    assert finished(server) == b""


def test_a_terminal_shows_a_table_of_a_short_interval(free_place: str) -> None:
    start("ping", "--serve", free_place)
    process, terminal = on_terminal("ping", free_place, "-i", "0", "-n", "100")
    assert process.wait(BOUND) == 0
    screen = screen_of(terminal).decode()
    assert f"omq ping {free_place}" in screen
    assert re.search(r"│ +100 │ +100 │ +0% │", screen)
    assert "seq=" not in screen
    assert "100 sent, 100 received, 0% loss" in screen


def test_quiet_prints_the_last_lines_only(free_place: str) -> None:
    start("ping", "--serve", free_place)
    assert run("ping", free_place, "-q", "-n", "2", "-i", "0").startswith(b"--- tcp://")


def test_arguments_that_are_not_valid_are_named() -> None:
    assert "nonsense" in failed(start("ping", "nonsense"), 2)
    assert "--timeout" in failed(start("ping", "tcp://127.0.0.1:1", "-t", "0"), 2)
