"""Record batches from sockets, without Spark."""

import contextlib
import errno
import itertools
import logging
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import omq
from omq.spark import pull_batches, push_partition
from omq.spark.live import connection as connections
from omq.spark.live.connection import DRAIN_IDLE_TIMEOUT_S, LiveConnection, ReadProgress
from omq.spark.live.settings import SocketSettings
from omq.spark.options import STREAM_READ
from tests.support.raw_peer import GREETING, frames, ready
from tests.support.waits import until


@pytest.fixture
def push() -> Iterator[omq.PUSH]:
    with omq.PUSH(bind="tcp://127.0.0.1:*", linger=0) as sock:
        yield sock


def pulled(push: omq.PUSH, **options: Any) -> list[Any]:
    return list(pull_batches(socket="PULL", connect=push.endpoints[0], **options))


def settings(url: str, **options: str) -> SocketSettings:
    given = {"socket": "PULL", "connect": url, "columns": "value", "batchBytes": "1m", **options}
    return SocketSettings.parse(STREAM_READ, given)


def opened(url: str, **options: str) -> LiveConnection:
    return LiveConnection(settings(url, **options), url)


def taken(connection: LiveConnection, **limits: Any) -> int:
    """Counts the messages of a read."""
    return sum(one.count for one in connection.take(ReadProgress(**limits)))


def test_batches_have_about_the_size_that_was_asked_for(push: omq.PUSH) -> None:
    push.send_many([b"x" * 1000] * 500)
    batches = pulled(push, maxRows=500, batchBytes=65536, columns="value,sequence")
    assert sum(map(len, batches)) == 500
    assert all(60_000 <= len(batch) * 1000 <= 65536 for batch in batches[:-1])
    assert pa.Table.from_batches(batches)["sequence"].to_pylist() == list(range(500))


def test_every_kind_of_message_in_order(push: omq.PUSH) -> None:
    messages = [[b"a"], [b"b", b"c"], [b""], [b"", b""], [b"x" * 100_000], [b"d"], [b"e", b"f", b"g"]]
    for message in messages:
        push.send_multipart(message)
    batches = pulled(push, maxRows=7, batchBytes=4096, columns="parts,value")
    table = pa.Table.from_batches(batches)
    assert table["parts"].to_pylist() == messages
    assert table["value"].to_pylist() == [parts[0] if len(parts) == 1 else None for parts in messages]


def test_batches_stay_what_they_are_while_more_is_read(push: omq.PUSH) -> None:
    push.send_many([b"%06d" % n for n in range(1000)])
    batches = pulled(push, maxRows=1000, batchBytes=600, columns="value")
    assert len(batches) == 10
    assert [int(value) for batch in batches for value in batch["value"].to_pylist()] == list(range(1000))


@pytest.mark.skipif(
    "libasan" in Path("/proc/self/maps").read_text(), reason="AddressSanitizer keeps freed memory from being used again"
)
def test_memory_is_used_again_once_a_batch_is_dropped(push: omq.PUSH) -> None:
    push.send_many([b"%06d" % n for n in range(1000)])
    seen = set()
    for batch in pull_batches(socket="PULL", connect=push.endpoints[0], maxRows=1000, batchBytes=600, columns="value"):
        seen.add(batch["value"].buffers()[2].address)
    assert len(seen) <= 3


def test_small_messages_are_taken_many_at_a_time_though_they_come_a_few_at_a_time() -> None:
    goes_on = threading.Event()
    with omq.PUSH(bind="tcp://127.0.0.1:*", linger=0) as push:

        def feed() -> None:
            while not goes_on.wait(0.0001):
                with contextlib.suppress(omq.SendTimeout):
                    push.send_many([b"x" * 64] * 10, timeout=0.1)

        feeder = threading.Thread(target=feed)
        feeder.start()
        try:
            connection = opened(push.endpoints[0])
            found = list(connection.take(ReadProgress(max_rows=2000, max_seconds=5)))
            connection.socket.stop()
        finally:
            goes_on.set()
            feeder.join()
    runs = [run for one in found for run in one.runs]
    # A call that got little was followed by a moment without one.
    pairs = itertools.pairwise(runs)
    gaps = [later - sooner for (sooner, count), (later, _) in pairs if count * 64 < connections.MIN_CALL_BYTES]
    assert len(gaps) > 2
    assert min(gaps) >= connections.CALL_PAUSE_S * 1e6 * 0.9


@pytest.mark.parametrize("ends", ["seconds", "interrupted"])
def test_a_read_ends_in_time_while_a_peer_sends(ends: str) -> None:
    goes_on = threading.Event()
    with omq.PUSH(bind="tcp://127.0.0.1:*", linger=0) as push:

        def feed() -> None:
            while not goes_on.wait(0.0001):
                with contextlib.suppress(omq.SendTimeout):
                    push.send(b"x", timeout=0.1)

        feeder = threading.Thread(target=feed)
        feeder.start()
        try:
            connection = opened(push.endpoints[0], batchBytes="16m")
            limits = ReadProgress(max_seconds=0.3) if ends == "seconds" else ReadProgress()
            if ends == "interrupted":
                threading.Timer(0.3, connection.interrupted.set).start()
            begun = time.monotonic()
            count = sum(one.count for one in connection.take(limits))
            took = time.monotonic() - begun
            assert limits.timed_out == (ends == "seconds")
            connection.socket.stop()
        finally:
            goes_on.set()
            feeder.join()
    assert count > 20
    # A read without the look at the time goes on until 262,144 messages have come: some 30 seconds.
    assert took < 5


def test_a_bound_in_bytes_is_kept(push: omq.PUSH) -> None:
    push.send_many([b"x" * 10] * 100)
    assert [len(batch) for batch in pulled(push, maxBytes=99)] == [9]


def test_the_first_message_is_taken_whatever_its_size(push: omq.PUSH) -> None:
    push.send_many([b"x" * 100_000] * 3)
    assert [len(batch) for batch in pulled(push, maxBytes=99)] == [1]


def test_arrived_messages_that_were_not_read_are_counted() -> None:
    # A peer by hand: what a PUSH has may arrive in pieces, and only what has arrived is counted.
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        connection = opened(url)
        peer = listener.accept()[0]
    with peer:
        peer.sendall(GREETING + ready(b"PUSH"))
        connection.socket.wait_connected(timeout=10)
        peer.sendall(frames(b"x") * 100)
        assert taken(connection, max_rows=40) == 40
        assert connection.close() == 60


def test_messages_lost_by_closing_are_all_counted(push: omq.PUSH) -> None:
    count = 60_000

    def job() -> None:
        for number in range(count):
            push.send(b"%d" % number + b" " * 1000)

    thread = threading.Thread(target=job)
    thread.start()
    connection = opened(push.endpoints[0])
    rows = taken(connection, max_rows=20_000)
    assert rows == 20_000
    lost = connection.close()
    with omq.PULL(connect=push.endpoints[0]) as pull:
        # The sender has kept the rest.
        assert int(pull.recv(timeout=20)) == rows + lost
        for _ in range(count - rows - lost - 1):
            pull.recv(timeout=20)
    thread.join(10)


def test_between_two_reads_it_is_paused() -> None:
    with omq.PUSH(bind="tcp://127.0.0.1:*", linger=0, send_hwm=1, send_buffer=65536) as push:
        connection = opened(push.endpoints[0], recv_buffer="65536")
        try:
            body = b"x" * 100_000
            push.send(body)
            assert taken(connection, max_rows=1) == 1
            assert connection.socket.options.recv_hwm == 1
            sent = 0
            try:
                while sent < 100:
                    push.send(body, timeout=0.3)
                    sent += 1
            except omq.SendTimeout:
                pass
            assert sent < 15  # kernel buffers, and one or two messages
            assert taken(connection, max_rows=sent) == sent
        finally:
            connection.close()


def test_waiting_messages_are_bounded_in_bytes(push: omq.PUSH) -> None:
    connection = opened(push.endpoints[0])
    push.send_many([b"x" * 100_000] * 30)
    bounds = {connection.socket.options.recv_hwm for _ in connection.take(ReadProgress(max_rows=30))}
    assert bounds == {10}
    connection.close()


def test_large_and_small_messages_in_one_read(push: omq.PUSH) -> None:
    sizes = [100_000, 1 << 20, 70_000, 5, 3 << 20, 0, 200_000, 1 << 20]
    messages = [bytes([n]) * size for n, size in enumerate(sizes)]
    push.send_many(messages)
    push.send_multipart([b"a" * 100_000, b"b"])
    push.send(b"end")
    batches = pulled(push, maxRows=10, batchBytes=1 << 21, columns="parts,value")
    assert pa.Table.from_batches(batches)["parts"].to_pylist() == [
        *([message] for message in messages),
        [b"a" * 100_000, b"b"],
        [b"end"],
    ]
    assert len(batches) < 8


def test_a_drain_ends_when_it_is_quiet(push: omq.PUSH) -> None:
    connection = opened(push.endpoints[0])
    push.send_many([b"x"] * 100)
    begun = time.monotonic()
    assert taken(connection, quiet_seconds=0.3) == 100
    assert 0.3 <= time.monotonic() - begun < 5
    connection.close()


@pytest.mark.parametrize("multipart", [False, True], ids=["one part", "several"])
@pytest.mark.parametrize("rows", [None, 3], ids=["no cap", "cap"])
def test_a_drain_loses_no_message_of_a_peer_that_still_sends(multipart: bool, rows: int | None) -> None:
    sent = itertools.count()
    goes_on = threading.Event()
    with omq.PUSH(bind="tcp://127.0.0.1:*", linger=0) as push:
        url = push.endpoints[0]

        def feed() -> None:
            while not goes_on.wait(0.0001):
                with contextlib.suppress(omq.SendTimeout):
                    push.send_multipart([b"%d" % next(sent), *([b""] if multipart else [])], timeout=5)

        feeder = threading.Thread(target=feed)
        feeder.start()
        wanted = settings(url, columns="parts", recv_hwm="0")
        connection = LiveConnection(wanted, url)
        try:
            got: list[int] = []
            if rows:
                assert connection.socket.poll(20)
                time.sleep(0.2)  # so that the kernel has some on their way
            has_timed_out, goes_on_reading = False, True
            while goes_on_reading:
                progress = ReadProgress(max_rows=rows, max_seconds=0.0 if rows else 0.3, quiet_seconds=5)
                for one in connection.take(progress):
                    got += [int(parts[0]) for parts in one.record_batch(wanted)["parts"].to_pylist()]
                has_timed_out = has_timed_out or progress.timed_out
                goes_on_reading = progress.bounded
            assert has_timed_out
            assert connection.close() == 0
        finally:
            with omq.PULL(connect=url) as rest:
                following = int(rest.recv_multipart(timeout=20)[0])
                goes_on.set()
                feeder.join()
    assert len(got) > 5
    assert got == list(range(len(got)))
    assert following == len(got)


def test_rows_of_every_kind_are_pushed() -> None:
    with omq.PULL(bind="tcp://127.0.0.1:*") as pull:
        url = pull.endpoints[0]
        batch = pa.RecordBatch.from_pydict({"value": [b"1", b"", b"3" * 100_000]})
        (counts,) = push_partition([batch.slice(1)], socket="PUSH", connect=url)
        assert counts.to_pydict() == {"rows": [2], "bytes": [100_000]}
        assert [pull.recv(timeout=5) for _ in range(2)] == [b"", b"3" * 100_000]
        push_partition([b"a", bytearray(b"b")], socket="PUSH", connect=url)
        assert [pull.recv(timeout=5) for _ in range(2)] == [b"a", b"b"]
        parts = pa.RecordBatch.from_pydict({"parts": [[b"a", b"b"], [b""]]})
        push_partition(iter([parts]), socket="PUSH", connect=url)
        assert [pull.recv_multipart(timeout=5) for _ in range(2)] == [[b"a", b"b"], [b""]]
        large = pa.RecordBatch.from_arrays([pa.array([b"x", b"yy"], pa.large_binary())], names=["value"])
        push_partition([large.slice(1)], socket="PUSH", connect=url)
        assert pull.recv(timeout=5) == b"yy"
        with pytest.raises(omq.OptionError, match="column 'extra'"):
            push_partition([pa.RecordBatch.from_pydict({"extra": [1]})], socket="PUSH", connect=url)


def raw_push(listener: socket.socket) -> socket.socket:
    """Returns a PUSH on a bare socket that does not support half-closed connections, connected to the next peer."""
    sock, _ = listener.accept()
    sock.sendall(GREETING + ready(b"PUSH"))
    return sock


def test_a_large_message_has_its_time_when_the_connection_is_closed() -> None:
    size = 8 << 20
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        connection = opened(url)
        begun = threading.Event()

        def feed() -> None:
            with raw_push(listener) as push:
                push.sendall(b"\x02" + size.to_bytes(8, "big"))
                begun.set()
                # Longer in all than nothing at all may come.
                for _ in range(8):
                    time.sleep(DRAIN_IDLE_TIMEOUT_S / 6)
                    push.sendall(bytes(size // 8))

        thread = threading.Thread(target=feed)
        thread.start()
        assert begun.wait(10)
        until(lambda: connection.socket.peers)
        assert connection.close() == 1
        thread.join(20)


def test_a_peer_that_still_sends_at_the_end_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connections, "DRAIN_TIMEOUT_S", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        connection = opened(url)

        def feed() -> None:
            with raw_push(listener) as push, contextlib.suppress(OSError):
                while True:
                    push.sendall(b"\x00\x01x" * 100)
                    time.sleep(0.01)

        thread = threading.Thread(target=feed)
        thread.start()
        assert taken(connection, max_rows=1, max_seconds=10) == 1
        with caplog.at_level(logging.WARNING, "omq.spark"):
            connection.close()
        thread.join(20)
        assert "messages on their way are lost" in caplog.text


class Opening:
    """Refuses to bind a number of times."""

    def __init__(self, code: int, refusals: int) -> None:
        self.code, self.refusals = code, refusals
        self.attempts = 0

    def __call__(self, settings: SocketSettings, endpoint: str, **options: Any) -> omq.Socket:
        self.attempts += 1
        if self.attempts <= self.refusals:
            raise omq.BindError(self.code, "refused")
        return omq.PULL(bind="tcp://127.0.0.1:*")


def test_an_endpoint_that_another_process_still_has_is_bound_later(monkeypatch: pytest.MonkeyPatch) -> None:
    opening = Opening(errno.EADDRINUSE, 3)
    monkeypatch.setattr(SocketSettings, "open", lambda *arguments, **options: opening(*arguments, **options))
    monkeypatch.setattr(connections, "BIND_RETRY_DELAY_S", 0.001)
    opened("tcp://127.0.0.1:1").socket.stop()
    assert opening.attempts == 4


@pytest.mark.parametrize("code", [errno.EACCES, errno.EADDRNOTAVAIL, socket.EAI_NONAME])
def test_an_endpoint_that_cannot_be_bound_fails_at_once(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    opening = Opening(code, 1)
    monkeypatch.setattr(SocketSettings, "open", lambda *arguments, **options: opening(*arguments, **options))
    with pytest.raises(omq.BindError, match="refused"):
        opened("tcp://127.0.0.1:1")
    assert opening.attempts == 1
