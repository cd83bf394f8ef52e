"""`omq record` and `omq replay`."""

from __future__ import annotations

import os
import signal
import time
from itertools import pairwise
from pathlib import Path

import pytest

import omq
from omq.cli.percentiles import percentile
from omq.cli.record.feed_file import FeedReader, FeedWriter
from tests.support.fork_server import ForkedProcess
from tests.support.waits import least, until
from tests.system.cli.command_process import BOUND, failed, finished, on_terminal, run, run_first, screen_of, start

TCP = "tcp://127.0.0.1:*"
MS = 1_000_000  # nanoseconds


def bound(process: ForkedProcess) -> str:
    line = process.stderr.readline().decode()
    assert line.startswith("omq: bound to "), line
    return str(line.split()[-1])


def messages_in(path: Path) -> list[list[bytes]]:
    with FeedReader(path) as reader:
        return [parts for _, parts in reader]


def feed(path: Path, *messages: tuple[int, list[bytes]], kind: str = "SUB") -> Path:
    with FeedWriter(path, kind, [], 0) as writer:
        writer.write(messages)
    return path


# ---------------------------------------------------------------------- record


def test_a_feed_is_recorded_with_its_times(tmp_path: Path) -> None:
    path = tmp_path / "feed"
    before = time.time_ns()
    process = start("record", path, "-b", TCP, "-s", "A", "-n", "3")
    with omq.PUB(connect=bound(process)) as pub:
        pub.wait_subscribed(b"A", timeout=BOUND)
        for parts in ([b"A", b"1"], [b"B"], [b"A2"]):
            pub.send_multipart(parts)
        time.sleep(0.05)
        pub.send(b"A3")
        finished(process)
    with FeedReader(path) as reader:
        assert before <= reader.start_ns <= time.time_ns()
        assert (reader.socket_type, reader.endpoints) == ("SUB", [TCP])
        times, messages = zip(*reader, strict=True)
    assert messages == ([b"A", b"1"], [b"A2"], [b"A3"])
    assert times[2] - times[1] >= 45 * MS


def test_groups_and_their_names_are_recorded(tmp_path: Path) -> None:
    path = tmp_path / "feed"
    process = start("record", path, "--socket", "dish", "-g", "news", "-b", TCP, "-n", "1")
    with omq.RADIO(connect=bound(process)) as radio:
        radio.wait_subscribed("news", timeout=BOUND)
        radio.send(b"hello", group="news")
        finished(process)
    assert messages_in(path) == [[b"news", b"hello"]]
    with omq.DISH(bind=TCP, join="news") as dish:
        run("replay", path, "-c", dish.endpoints[0])
        message = dish.recv_message(timeout=BOUND)
        assert (message.group, message.body) == ("news", b"hello")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_what_was_received_before_an_end_is_in_the_file(number: int, tmp_path: Path) -> None:
    path = tmp_path / "feed"
    process = start("record", path, "--socket", "PULL", "-b", TCP)
    with omq.PUSH(connect=bound(process), linger=0) as push:
        sent = [b"%d" % number for number in range(500)]
        push.send_many(sent)
        until(lambda: len(messages_in(path)) == 500)
        os.kill(process.pid, number)
        assert process.wait(BOUND) == (-9 if number == signal.SIGKILL else 0)
    assert messages_in(path) == [[body] for body in sent]


def test_a_duration_ends_the_recording(tmp_path: Path) -> None:
    path = tmp_path / "feed"
    run("record", path, "-b", TCP, "-d", "0.1")
    assert messages_in(path) == []


def test_an_existing_file_is_kept_without_force(tmp_path: Path) -> None:
    path = tmp_path / "feed"
    path.write_bytes(b"mine")
    assert f"{path}: exists already" in failed(start("record", path, "-b", TCP, "-d", "0"))
    assert path.read_bytes() == b"mine"
    run("record", path, "-b", TCP, "-d", "0", "--force")
    assert messages_in(path) == []


def test_a_terminal_shows_the_progress(tmp_path: Path, free_place: str) -> None:
    path = tmp_path / "feed"
    recorder, terminal = on_terminal("record", path, "--socket", "PULL", "-b", free_place, "-n", "2")
    with omq.PUSH(connect=free_place) as push:
        push.send(b"hello")
        until(lambda: path.exists() and path.stat().st_size and messages_in(path) == [[b"hello"]])
        time.sleep(0.5)  # the line changes five times a second
        push.send(b"world")
        assert recorder.wait(BOUND) == 0
    assert b"Recording: 1 message, 5 bytes" in screen_of(terminal)
    with omq.PULL(bind="tcp://127.0.0.1:*") as pull:
        player, terminal = on_terminal("replay", path, "-c", pull.endpoints[0])
        assert pull.recv(timeout=BOUND) == b"hello"
        assert player.wait(BOUND) == 0
    screen = screen_of(terminal)
    assert b"Replaying" in screen
    assert b"100%" in screen


# ---------------------------------------------------------------------- replay


def test_a_feed_is_replayed_in_whole_and_in_part(tmp_path: Path) -> None:
    messages = [(number * 10 * MS, [b"%d" % number, b"part"]) for number in range(10)]
    path = feed(tmp_path / "feed", *messages)
    for words, numbers in (
        (("--speed", "max"), range(10)),
        (("--speed", "10", "--from", "0.03", "--to", "0.06"), range(3, 6)),
    ):
        process = start("replay", path, "-b", TCP, *words)
        with omq.SUB(connect=bound(process), subscribe=b"") as sub:
            found = [sub.recv_multipart(timeout=BOUND) for _ in numbers]
            assert found == [[b"%d" % number, b"part"] for number in numbers]
            line = process.stderr.readline().decode()
            assert line.startswith(f"omq: {path}: {len(numbers)} messages in ")
            assert ("late p50" in line) == ("max" not in words)
            finished(process)


@pytest.mark.parametrize("speed", ["0.5", "2"])
def test_the_speed_is_a_factor(speed: str, tmp_path: Path) -> None:
    path = feed(tmp_path / "feed", (0, [b"a"]), (400 * MS, [b"b"]))
    process = start("replay", path, "-b", TCP, "--speed", speed)
    with omq.SUB(connect=bound(process), subscribe=b"") as sub:
        sub.recv(timeout=BOUND)
        began = time.monotonic()
        sub.recv(timeout=BOUND)
        took = time.monotonic() - began
        finished(process)
    assert took == pytest.approx(0.4 / float(speed), abs=0.1)


def test_an_incomplete_end_is_reported(tmp_path: Path) -> None:
    path = feed(tmp_path / "feed", (0, [b"a"]), (1, [b"b" * 100]), kind="PULL")
    path.write_bytes(path.read_bytes()[:-1])
    process = start("replay", path, "-b", TCP)
    with omq.PULL(connect=bound(process)) as pull:
        assert pull.recv(timeout=BOUND) == b"a"
        assert b"ends with an incomplete message of 119 bytes" in process.stderr.readline()
        finished(process)


def test_a_signal_ends_a_replay(tmp_path: Path) -> None:
    path = feed(tmp_path / "feed", (0, [b"a"]), (3_600_000 * MS, [b"b"]))
    process = start("replay", path, "-b", TCP)
    with omq.SUB(connect=bound(process), subscribe=b"") as sub:
        assert sub.recv(timeout=BOUND) == b"a"
        os.kill(process.pid, signal.SIGTERM)
        assert b"1 message in" in process.stderr.readline()
        finished(process)


@pytest.mark.parametrize(
    ("words", "status", "named"),
    [
        (("--speed", "0", "-b", TCP), 2, "--speed"),
        (("--speed", "fast", "-b", TCP), 2, "--speed"),
        (("--from", "2", "--to", "1", "-b", TCP), 2, "--to 1"),
        ((), 2, "--bind or --connect is missing"),
        (("--socket", "sub", "-b", TCP), 2, "--socket"),
    ],
)
def test_arguments_that_are_not_valid_are_named(
    words: tuple[str, ...], status: int, named: str, tmp_path: Path
) -> None:
    assert named in failed(start("replay", feed(tmp_path / "feed"), *words), status)


def test_another_file_is_named() -> None:
    assert "is not a recording" in failed(start("replay", __file__, "-b", TCP))


# ---------------------------------------------------------------------- timing


@pytest.mark.alone
@pytest.mark.slow
def test_the_times_between_messages_are_kept_within_a_millisecond(tmp_path: Path) -> None:
    gaps_ms = [1, 5, 2, 10, 3] * 200
    times = [0]
    for gap in gaps_ms:
        times.append(times[-1] + gap * MS)
    path = feed(tmp_path / "feed", *((at, [b"%d" % at]) for at in times))

    def error_ms() -> float:
        """Returns the p99 of the difference between the times at a receiver and in the recording."""
        copy = tmp_path / "copy"
        copy.unlink(missing_ok=True)
        recorder = start("record", copy, "-b", TCP, "-n", str(len(times)))
        endpoint = bound(recorder)
        replayer = start("replay", path, "-c", endpoint)
        for process in (recorder, replayer):
            run_first(process.pid)
        finished(replayer)
        finished(recorder)
        with FeedReader(copy) as reader:
            found = [at for at, _ in reader]
        differences = [abs((b - a) / MS - gap) for (a, b), gap in zip(pairwise(found), gaps_ms, strict=True)]
        return percentile(sorted(differences), 99)

    assert least(error_ms, 1.0) < 1.0
