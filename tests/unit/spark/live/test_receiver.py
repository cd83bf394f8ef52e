"""Receivers as processes, without Spark: reads on their host and on another, and the loss when one dies."""

import contextlib
import dataclasses
import logging
import os
import resource
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import omq
from omq.spark.live import coordinator, receiver_client
from omq.spark.live.coordinator import Coordinator
from omq.spark.live.receiver import MIN_MICROBATCH_BYTES, ReadRequest, Receiver, start
from omq.spark.live.rpc import FROZEN_TIMEOUT_S, IDLE_TIMEOUT_S, Channel, RpcServer, Unreachable, connect
from omq.spark.live.settings import SocketSettings
from omq.spark.live.source import SocketStreamReader, _loss_text
from omq.spark.options import STREAM_READ
from tests.support.waits import until

pytestmark = pytest.mark.usefixtures("forked_receivers")


@pytest.fixture(autouse=True)
def loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")


@pytest.fixture
def push() -> Iterator[omq.PUSH]:
    with omq.PUSH(bind="tcp://127.0.0.1:*", linger=0, send_hwm=0) as sock:
        yield sock


class Stream:
    """A run of a query as Spark's processes see it."""

    def __init__(self, **options: str) -> None:
        self.settings = parsed(**options)
        self.elsewhere = False
        self.coordinator = Coordinator()

    def end(self) -> None:
        """Ends the run, as the end of the process does that Spark asks for offsets."""
        self.coordinator._server.close()
        for one in self.coordinator._registrations():
            one.channel.close()

    def request(self, number: int, available_now: bool = False) -> ReadRequest:
        address = self.coordinator.address
        if self.elsewhere:
            address = address._replace(host="elsewhere")
        endpoint = self.settings.endpoints[0]
        return ReadRequest(endpoint, endpoint, number - 1, number, available_now, address, self.coordinator.secret)

    def read(self, number: int, available_now: bool = False, columns: tuple[str, ...] = ("value",)) -> list[Any]:
        """The values of one microbatch."""
        chosen = dataclasses.replace(self.settings, columns=columns)
        batches = list(receiver_client.read(chosen, self.request(number, available_now)))
        return [row[columns[0]] for batch in batches for row in batch.to_pylist()]

    def report(self) -> dict[str, Any]:
        """The reports of the receiver."""
        (report,) = self.coordinator.status()
        return report

    def lost(self) -> list[dict[str, Any]]:
        """The last reports of receivers that have died."""
        self.coordinator.status()  # receivers seldom report unless they are asked to
        return self.coordinator.take_lost()

    def receiver(self) -> int:
        """The receiver's process, by the name of its socket."""
        return int(receiver_client._find(self.settings, self.request(1)).name.split("/")[2])


def parsed(**options: str) -> SocketSettings:
    return SocketSettings.parse(STREAM_READ, {"socket": "PULL", **options})


@pytest.fixture
def stream(push: omq.PUSH) -> Iterator[Stream]:
    found = Stream(connect=push.endpoints[0], maxRowsPerTrigger="100", triggerSeconds="0.3")
    yield found
    found.end()


def numbered(first: int, count: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def gone(pid: int, within: float) -> bool:
    deadline = time.monotonic() + within
    while Path(f"/proc/{pid}").exists():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@pytest.mark.parametrize("elsewhere", [False, True], ids=["this host", "another host"])
def test_a_microbatch_is_the_same_until_it_is_committed(elsewhere: bool, push: omq.PUSH, stream: Stream) -> None:
    stream.elsewhere = elsewhere
    push.send_many(numbered(0, 250))
    assert stream.read(1) == stream.read(1) == numbered(0, 100)
    assert stream.read(2) == numbered(100, 100)
    assert stream.read(3) == stream.read(3) == numbered(200, 50)
    with pytest.raises(omq.StateError, match="microbatch 1 has been committed"):
        stream.read(1)


@pytest.mark.parametrize("elsewhere", [False, True], ids=["this host", "another host"])
def test_messages_of_every_kind_come_whole(elsewhere: bool, push: omq.PUSH, stream: Stream) -> None:
    stream.elsewhere = elsewhere
    sent = [[b"a"], [b"b", b"c"], [b""], [b"", b""], [b"x" * (5 << 20)], [b"d"]]
    for message in sent:
        push.send_multipart(message)
    found, batch = stream.read(1, columns=("parts", "sequence")), 1
    # Once more, before the next microbatch commits this one.
    one = next(
        receiver_client.read(
            dataclasses.replace(stream.settings, columns=("sequence", "endpoint", "parts")), stream.request(1)
        )
    )
    assert one.to_pylist()[0] == {"sequence": 0, "endpoint": push.endpoints[0], "parts": [b"a"]}
    while len(found) < len(sent):  # what comes behind a large one may be in the next microbatch
        batch += 1
        found += stream.read(batch, columns=("parts", "sequence"))
    assert found == sent


def test_a_killed_receiver_is_replaced_and_reported(push: omq.PUSH, stream: Stream) -> None:
    push.send_many(numbered(0, 100))
    assert stream.read(1) == numbered(0, 100)
    assert stream.lost() == []
    os.kill(stream.receiver(), signal.SIGKILL)
    until(lambda: not push.peers)
    push.send_many(numbered(100, 10))
    assert stream.read(1) == numbered(100, 10)
    (lost,) = stream.lost()
    assert (lost["microbatch"], lost["rows"], lost["endpoint"]) == (1, 100, push.endpoints[0])
    assert stream.lost() == []


@pytest.mark.parametrize("asked", [pytest.param(False, marks=pytest.mark.slow), True], ids=["continues", "fails"])
def test_a_receiver_killed_in_the_midst_of_a_microbatch_ends_it(
    asked: bool, push: omq.PUSH, caplog: pytest.LogCaptureFixture
) -> None:
    stream = Stream(
        connect=push.endpoints[0], triggerSeconds="20", batchBytes="1000", failOnDataLoss=str(asked).lower()
    )
    push.send_many([b"%03d" % n + b" " * 100 for n in range(100)])
    reader = receiver_client.read(stream.settings, stream.request(1))
    begun = next(reader)
    os.kill(stream.receiver(), signal.SIGKILL)
    if asked:
        with pytest.raises(omq.StateError, match=r"during a microbatch.*failOnDataLoss=true"):
            list(reader)
    else:
        with caplog.at_level(logging.WARNING, "omq.spark"):
            rest = list(reader)
        values = [int(value) for batch in [begun, *rest] for value in batch["value"].to_pylist()]
        assert values == list(range(len(values)))
        assert "the messages that it had are lost" in caplog.text
    stream.end()


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[Channel]:
    """The lines that this process has to receivers, the newest last."""
    found: list[Channel] = []
    connect = receiver_client.connect

    def kept(place: Any, secret: bytes) -> Channel:
        channel = connect(place, secret)
        if "/receiver/" in place.name:
            found.append(channel)
        return channel

    monkeypatch.setattr(receiver_client, "connect", kept)
    return found


@pytest.mark.parametrize(
    "elsewhere", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["this host", "another host"]
)
def test_a_broken_connection_loses_nothing_while_the_receiver_runs(
    elsewhere: bool, push: omq.PUSH, lines: list[Channel]
) -> None:
    stream = Stream(connect=push.endpoints[0], batchBytes="1000", maxRowsPerTrigger="100", triggerSeconds="20")
    stream.elsewhere = elsewhere
    push.send_many([b"%03d" % n + b" " * 100 for n in range(100)])
    values = []
    for number, batch in enumerate(receiver_client.read(stream.settings, stream.request(1))):
        values += [int(value) for value in batch["value"].to_pylist()]
        if number % 2 == 0:
            lines[-1].sock.close()
    assert values == list(range(100))
    assert len(lines) > 3
    stream.end()


@pytest.mark.parametrize("asked", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["continues", "fails"])
def test_a_receiver_that_is_killed_while_its_task_comes_back_ends_the_microbatch(
    asked: bool,
    push: omq.PUSH,
    lines: list[Channel],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    stream = Stream(
        connect=push.endpoints[0], batchBytes="1000", triggerSeconds="20", failOnDataLoss=str(asked).lower()
    )
    push.send_many([b"%03d" % n + b" " * 100 for n in range(100)])
    receiver = stream.receiver()
    called = receiver_client._call_coordinator

    @contextlib.contextmanager
    def answered(request: ReadRequest, question: dict[str, Any]) -> Iterator[dict[str, Any]]:
        with called(request, question) as answer:
            # The coordinator may give a dead receiver once more, until it knows of its end.
            if answer.get("receiver", [0, ""])[1] == question["broken"] and not gone(receiver, 0):
                os.kill(receiver, signal.SIGKILL)
                assert gone(receiver, 20)
                push.send_many([b"%03d" % n + b" " * 100 for n in range(100, 200)])
            yield answer

    monkeypatch.setattr(receiver_client, "_call_coordinator", answered)
    reader = receiver_client.read(stream.settings, stream.request(1))
    values = [int(value) for _ in range(3) for value in next(reader)["value"].to_pylist()]
    lines[-1].sock.close()
    if asked:
        with pytest.raises(omq.StateError, match=r"during a microbatch.*failOnDataLoss=true"):
            list(reader)
    else:
        with caplog.at_level(logging.WARNING, "omq.spark"):
            assert list(reader) == []
        assert "the messages that it had are lost" in caplog.text
    assert values == list(range(len(values)))
    stream.end()


def test_a_report_does_not_raise_or_consume_a_loss(push: omq.PUSH) -> None:
    reader = SocketStreamReader(parsed(connect=push.endpoints[0], triggerSeconds="0.3", failOnDataLoss="true"))
    before = reader.initialOffset()
    planned = reader.latestOffset(before)
    push.send_many(numbered(0, 10))
    (part,) = reader.partitions(before, planned)
    assert sum(map(len, reader.read(part))) == 10
    assert reader._coordinator is not None
    os.kill(int(receiver_client._find(reader._settings, part).name.split("/")[2]), signal.SIGKILL)
    until(lambda: reader._coordinator._lost_reports, "the loss")
    for _ in range(2):
        assert reader.reportLatestOffset() == {"kind": "live", "partitions": []}
    with pytest.raises(omq.StateError, match=r"the receiver has died.*failOnDataLoss=true"):
        reader.latestOffset(planned)


def registered(stream: Stream, server: RpcServer) -> Channel:
    """Registers a receiver that does not answer."""
    channel = connect(stream.coordinator.address, stream.coordinator.secret)
    assert channel.call({"register": stream.settings.endpoints[0], "address": server.address}) == {"serve": True}
    return channel


def test_the_wait_for_a_suspect_receiver_is_bounded(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "FROZEN_TIMEOUT_S", 0.5)
    request = stream.request(1)
    with contextlib.closing(RpcServer("receiver", request.secret, lambda _: None)) as server:
        frozen = registered(stream, server)
        question = {"find": request.name, "broken": server.address.name}
        started = time.monotonic()
        with receiver_client._call_coordinator(request, question) as answer:
            assert answer == {"start": True}
        assert time.monotonic() - started < 10
        frozen.close()


def test_the_wait_for_a_suspect_receiver_ends_when_it_registers_again(stream: Stream) -> None:
    request = stream.request(1)
    with contextlib.closing(RpcServer("receiver", request.secret, lambda _: None)) as server:
        first = registered(stream, server)
        with contextlib.closing(connect(request.coordinator, request.secret)) as task:
            task.send({"find": request.name, "broken": server.address.name})
            assert first.recv().keys() == {"report"}
            second = registered(stream, server)
            task.sock.settimeout(10)
            assert task.recv()["receiver"][1] == server.address.name
        first.close()
        second.close()


def test_a_receiver_that_closes_refuses_another_microbatch(push: omq.PUSH, monkeypatch: pytest.MonkeyPatch) -> None:
    receiver = Receiver(parsed(connect=push.endpoints[0]), push.endpoints[0])
    is_draining, end = threading.Event(), threading.Event()

    def drain() -> int:
        is_draining.set()
        end.wait(20)
        return 0

    monkeypatch.setattr(receiver._connection, "close", drain)
    closing = threading.Thread(target=receiver.close)
    closing.start()
    assert is_draining.wait(20)
    with pytest.raises(Unreachable, match=f"{push.endpoints[0]}: the receiver is closing"):
        receiver.read({"read": 1, "after": 0, "skip": 0, "available_now": False})
    end.set()
    closing.join(20)
    receiver._connection.socket.stop()


def test_a_task_that_a_closing_receiver_refuses_reads_from_the_next_one(push: omq.PUSH, stream: Stream) -> None:
    push.send_many(numbered(0, 10))
    refused = []

    def refuse(channel: Channel) -> None:
        refused.append(channel.recv())
        closing.close()

    with contextlib.closing(RpcServer("receiver", stream.coordinator.secret, refuse)) as server:
        closing = registered(stream, server)
        assert stream.read(1) == numbered(0, 10)
    assert len(refused) == 1


def test_what_is_lost_with_a_receiver_is_a_lower_bound() -> None:
    report = {"connection": "c", "microbatch": 17, "rows": 0, "unread": 0, "waiting": 1004}
    assert "1004 that had arrived, by its last report. This is a lower bound" in _loss_text(report, 16)


def test_a_receiver_that_cannot_be_reached_fails_the_task_and_not_the_microbatch(
    push: omq.PUSH, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    push.send_many(numbered(0, 100))
    stream.receiver()
    connect = receiver_client.connect

    def refused(place: Any, secret: bytes) -> Channel:
        if "/receiver/" in place.name:
            raise Unreachable("no way there")
        return connect(place, secret)

    with monkeypatch.context() as patched:
        patched.setattr(receiver_client, "connect", refused)
        with pytest.raises(omq.StateError, match=r"on 127\.0\.0\.1, port \d+\) cannot be reached.*no way there"):
            stream.read(1)
    assert stream.read(1) == numbered(0, 100)


def test_a_task_without_descriptors_fails_and_the_next_one_reads_the_same(push: omq.PUSH) -> None:
    stream = Stream(connect=push.endpoints[0], triggerSeconds="1", maxRowsPerTrigger="10")
    push.send_many([b"%d" % n + b" " * 100_000 for n in range(10)])
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    reader = receiver_client.read(stream.settings, stream.request(1))
    stream.receiver()
    receive = Channel.receive
    taken: list[int] = []

    def starved(channel: Channel) -> Any:
        if channel.local and channel.sock.gettimeout() == IDLE_TIMEOUT_S:
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))), limits[1]))
            with contextlib.suppress(OSError):
                while True:
                    taken.append(os.open(os.devnull, os.O_RDONLY))
        return receive(channel)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Channel, "receive", starved)
        try:
            with pytest.raises(omq.StateError, match="no descriptor is left"):
                list(reader)
        finally:
            for one in taken:
                os.close(one)
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert [int(value) for value in stream.read(1)] == list(range(10))
    stream.end()


@pytest.mark.parametrize(
    "error", [{"error": "no luck", "kind": "BindError"}, None], ids=["with an error", "without an error"]
)
def test_a_receiver_that_ends_at_its_start_fails_the_task(
    error: dict[str, str] | None, push: omq.PUSH, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []

    def doomed(_: SocketSettings, request: ReadRequest) -> Any:
        started.append(request)
        return error

    with monkeypatch.context() as patched:
        patched.setattr(receiver_client.receiver, "start", doomed)
        for number in (1, 2):
            begun = time.monotonic()
            with pytest.raises(omq.OmqError, match="no luck" if error else "has ended at its start"):
                stream.read(1)
            assert time.monotonic() < begun + 5
            assert len(started) == number
    push.send_many(numbered(0, 10))
    assert stream.read(1) == numbered(0, 10)


def test_tasks_that_want_a_receiver_at_once_get_the_same_one(push: omq.PUSH, stream: Stream) -> None:
    push.send_many(numbered(0, 50))
    got: list[Any] = []
    tasks = [threading.Thread(target=lambda: got.append(stream.read(1))) for _ in range(4)]
    for one in tasks:
        one.start()
    for one in tasks:
        one.join(60)
    assert got == [numbered(0, 50)] * 4
    assert len(push.peers) == 1
    assert stream.lost() == []


def test_a_second_receiver_of_a_partition_opens_no_connection(push: omq.PUSH, stream: Stream) -> None:
    assert stream.read(1) == []
    assert start(stream.settings, stream.request(1)) is None
    push.send_many(numbered(0, 50))
    assert stream.read(2) == numbered(0, 50)
    assert len(push.peers) == 1
    assert stream.lost() == []


@pytest.mark.slow
def test_150_000_subscriptions() -> None:
    wanted = ",".join(f"{n:07d}" for n in range(150_000))
    with omq.XPUB(bind="tcp://127.0.0.1:*", linger=0) as pub:
        stream = Stream(socket="SUB", connect=pub.endpoints[0], subscribe=wanted, triggerSeconds="1")
        ended = threading.Event()

        def feed() -> None:
            while not ended.wait(0.01):
                pub.send(b"0149999")

        thread = threading.Thread(target=feed)
        thread.start()
        assert set(stream.read(1) + stream.read(2)) == {b"0149999"}
        ended.set()
        thread.join(20)
        stream.end()


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_receiver_that_hangs_briefly_loses_nothing(push: omq.PUSH, stream: Stream) -> None:
    push.send_many(numbered(0, 50))
    assert stream.read(1) == numbered(0, 50)
    receiver = stream.receiver()
    push.send_many(numbered(50, 50))
    os.kill(receiver, signal.SIGSTOP)
    timer = threading.Timer(IDLE_TIMEOUT_S + 5, os.kill, (receiver, signal.SIGCONT))
    timer.start()
    begun = time.monotonic()
    assert stream.read(2) == numbered(50, 50)
    assert time.monotonic() - begun > IDLE_TIMEOUT_S
    assert stream.receiver() == receiver
    assert stream.lost() == []


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_receiver_that_hangs_is_replaced_and_ends(push: omq.PUSH, stream: Stream) -> None:
    push.send_many(numbered(0, 50))
    assert stream.read(1) == numbered(0, 50)
    receiver = stream.receiver()
    os.kill(receiver, signal.SIGSTOP)
    try:
        begun = time.monotonic()
        assert stream.read(2) == []
        assert FROZEN_TIMEOUT_S - 3 < time.monotonic() - begun < FROZEN_TIMEOUT_S + 30
        assert stream.receiver() != receiver
    finally:
        os.kill(receiver, signal.SIGCONT)
    assert gone(receiver, 20)
    push.send_many(numbered(50, 10))
    assert stream.read(3) == numbered(50, 10)


def test_unauthenticated_peers_do_not_block_tasks(push: omq.PUSH, stream: Stream) -> None:
    port = stream.coordinator.address.port
    with contextlib.ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        push.send_many(numbered(0, 10))
        for elsewhere in (False, True):
            stream.elsewhere = elsewhere
            assert stream.read(1) == numbered(0, 10)


def test_few_descriptors_are_enough(push: omq.PUSH) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    stream = Stream(connect=push.endpoints[0], batchBytes="64k", triggerSeconds="20", maxRowsPerTrigger="3000")
    push.send_many([b"%04d" % number + b" " * 20_000 for number in range(3000)])
    # What is started from here on inherits it.
    resource.prlimit(0, resource.RLIMIT_NOFILE, (256, limits[1]))
    try:
        assert [int(value[:4]) for value in stream.read(1)] == list(range(3000))
    finally:
        resource.prlimit(0, resource.RLIMIT_NOFILE, limits)
    stream.end()


@pytest.mark.slow
def test_the_error_of_a_receivers_start_is_raised_in_the_task() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        url = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        stream = Stream(bind=url)
        with pytest.raises(omq.BindError, match="in use"):
            stream.read(1)
        stream.end()


def test_a_connect_timeout_is_raised_in_the_task() -> None:
    stream = Stream(connect="tcp://127.0.0.1:1", connectTimeout="0.3", triggerSeconds="5")
    for _ in range(2):
        with pytest.raises(omq.ConnectError, match=r"connectTimeout=0.3 s; last failure: .*refused"):
            stream.read(1)
    stream.end()


def test_a_drain_ends_when_quiet_and_continues_after_a_limit(push: omq.PUSH) -> None:
    stream = Stream(connect=push.endpoints[0], maxRowsPerTrigger="100", quietSeconds="0.3")
    push.send_many(numbered(0, 150))
    assert stream.read(1, available_now=True) == numbered(0, 100)
    one = stream.report()
    assert (one["microbatch"], one["bounded"], one["rows"], one["waiting"]) == (1, True, 100, 50)
    assert stream.read(2, available_now=True) == numbered(100, 50)
    one = stream.report()
    assert (one["microbatch"], one["bounded"], one["connected"], one["taken"]) == (2, False, 0, 150)
    stream.end()


def test_a_drain_that_has_a_time_ends_in_it_however_short_its_microbatches_are(
    push: omq.PUSH, capfd: pytest.CaptureFixture[str]
) -> None:
    stream = Stream(connect=push.endpoints[0], maxRowsPerTrigger="100", quietSeconds="5", triggerSeconds="1")
    ended = threading.Event()

    def feed() -> None:
        number = 0
        while not ended.wait(0.0005):
            push.send(b"%d" % number)
            number += 1

    thread = threading.Thread(target=feed)
    thread.start()
    began, bounded, number, got = time.monotonic(), True, 0, list[bytes]()
    while bounded:
        number += 1
        got += stream.read(number, available_now=True)
        bounded = stream.report()["bounded"]
        time.sleep(0.05)  # Spark's own work between two microbatches
    ended.set()
    thread.join(20)
    assert got == numbered(0, len(got))
    assert len(got) > 100
    assert time.monotonic() - began < 30
    assert capfd.readouterr().err.count("messages still arrived after availableNow had read for 1 s") == 1
    stream.end()


def test_a_drain_without_a_time_limit_reads_all_messages(push: omq.PUSH, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omq.spark.live.receiver.DEFAULT_AVAILABLE_NOW_S", 1.0)
    wanted = parsed(connect=push.endpoints[0], maxRowsPerTrigger="10", quietSeconds="0.3", columns="value")
    one = Receiver(wanted, push.endpoints[0])
    push.send_many(numbered(0, 150))
    got: list[bytes] = []
    number = 0
    while len(got) < 150:
        number += 1
        found = one.read({"read": number, "after": number - 1, "skip": 0, "available_now": True})
        got += [value for taken in found.follow() for value in taken.record_batch(wanted)["value"].to_pylist()]
        time.sleep(0.1)
    assert got == numbered(0, 150)
    one.close()


def test_a_microbatch_without_bounds_has_one_all_the_same(push: omq.PUSH, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omq.spark.live.receiver.available_bytes", lambda: 1 << 20)
    one = Receiver(parsed(connect=push.endpoints[0], triggerSeconds="30"), push.endpoints[0])
    body = b"x" * (8 << 20)
    push.send_many([body] * 20)
    found = one.read({"read": 1, "after": 0, "skip": 0, "available_now": False})
    assert sum(taken.size for taken in found.follow()) == MIN_MICROBATCH_BYTES
    assert found.bounded
    assert one.status()["bounded"]
    one.commit(1)
    assert one.status()["rows"] == 0
    one.close()


def test_one_that_does_not_fit_the_columns_fails_each_attempt(push: omq.PUSH, stream: Stream) -> None:
    push.send(b"0")
    push.send_multipart([b"1", b"1"])
    for _ in range(2):
        with pytest.raises(omq.MultipartError, match="a message of 2 parts"):
            stream.read(1)
    report = stream.report()
    assert (report["rows"], report["waiting"]) == (1, 1)


def test_more_timestamps_than_fit_in_a_json_message(push: omq.PUSH) -> None:
    count = 60_000
    stream = Stream(connect=push.endpoints[0], maxRowsPerTrigger=str(count), triggerSeconds="20", recv_hwm="0")
    for number in range(count):
        push.send_multipart([b"%d" % number, b""])
    assert [int(parts[0]) for parts in stream.read(1, columns=("parts",))] == list(range(count))
    stream.end()


# ---------------------------------------------------------------------- between microbatches, and the end


def test_a_receiver_reports_at_once_that_a_microbatch_would_have_something(push: omq.PUSH, stream: Stream) -> None:
    assert not stream.coordinator.wait_ready(0, 0.1)
    assert stream.coordinator.wait_ready(1, 0.1), "a microbatch starts what is missing"
    assert stream.read(1) == []
    begun = time.monotonic()
    assert not stream.coordinator.wait_ready(1, 0.5)
    assert time.monotonic() - begun >= 0.5
    timer = threading.Timer(0.3, push.send, (b"0",))
    timer.start()
    assert stream.coordinator.wait_ready(1, 20)
    assert stream.read(2) == [b"0"]
    assert not stream.report()["ready"]
    assert not stream.coordinator.wait_ready(1, 0.5)
    timer.join()


def test_a_connect_timeout_between_microbatches_is_something_for_the_next_one() -> None:
    stream = Stream(connect="tcp://127.0.0.1:1", connectTimeout="1", triggerSeconds="0.3")
    assert stream.read(1) == []
    assert stream.coordinator.wait_ready(1, 20)
    with pytest.raises(omq.ConnectError, match=r"connectTimeout=1 s; last failure: .*refused"):
        stream.read(2)
    stream.end()


@pytest.mark.parametrize(
    "elsewhere", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["this host", "another host"]
)
def test_a_receiver_ends_with_the_query_and_logs_the_loss(
    elsewhere: bool, push: omq.PUSH, capfd: pytest.CaptureFixture[str]
) -> None:
    stream = Stream(connect=push.endpoints[0], maxRowsPerTrigger="100", triggerSeconds="0.3")
    stream.elsewhere = elsewhere
    push.send_many(numbered(0, 250))
    assert stream.read(1) == numbered(0, 100)
    assert stream.read(2) == numbered(100, 100)
    receiver = stream.receiver()
    stream.end()
    assert gone(receiver, 20)
    lost = (
        "Of 100 messages in the newest microbatches, those that Spark has not committed are lost; 50 that had arrived"
    )
    logged = capfd.readouterr().err
    assert f"{push.endpoints[0]}: the receiver has ended. {lost}" in logged
    assert "A libzmq peer drops the messages that it had queued" in logged
    # What comes later is for the next run.
    push.send_many(numbered(250, 10))
    following = Stream(connect=push.endpoints[0], triggerSeconds="0.5")
    assert following.read(3) == numbered(250, 10)
    following.end()


def test_a_receiver_that_gets_sigterm_logs_the_loss_and_is_replaced(
    push: omq.PUSH, stream: Stream, capfd: pytest.CaptureFixture[str]
) -> None:
    push.send_many(numbered(0, 150))
    assert stream.read(1) == numbered(0, 100)
    assert stream.report()["rows"] == 100
    receiver = stream.receiver()
    os.kill(receiver, signal.SIGTERM)
    assert gone(receiver, 20)
    assert (
        "Of 100 messages in the newest microbatches, those that Spark has not committed are lost; 50"
        in capfd.readouterr().err
    )
    push.send_many(numbered(150, 10))
    assert stream.read(2) == numbered(150, 10)
    assert [(one["microbatch"], one["rows"]) for one in stream.lost()] == [(1, 100)]


@pytest.mark.slow
def test_a_query_that_has_committed_all_logs_no_loss(
    push: omq.PUSH, stream: Stream, capfd: pytest.CaptureFixture[str]
) -> None:
    push.send_many(numbered(0, 50))
    assert stream.read(1) == numbered(0, 50)
    stream.coordinator.commit(1)
    receiver = stream.receiver()
    stream.end()
    assert gone(receiver, 20)
    assert "are lost" not in capfd.readouterr().err


def test_the_end_is_no_error_where_standard_error_leads_nowhere(push: omq.PUSH) -> None:
    """The pipe of a driver that has died."""
    reading, writing = os.pipe()
    saved = os.dup(2)
    stream = Stream(connect=push.endpoints[0], maxRowsPerTrigger="100", triggerSeconds="0.3")
    push.send_many(numbered(0, 150))
    os.dup2(writing, 2)
    try:
        assert stream.read(1) == numbered(0, 100)
    finally:
        os.dup2(saved, 2)
        for one in (reading, writing, saved):
            os.close(one)
    receiver = stream.receiver()
    stream.end()
    assert gone(receiver, 20)
    until(lambda: not push.peers, "the end of the connection")


def test_a_drain_takes_messages_that_are_on_their_way(push: omq.PUSH, capfd: pytest.CaptureFixture[str]) -> None:
    stream = Stream(connect=push.endpoints[0], maxRowsPerTrigger="1000", triggerSeconds="0.3")
    ended = threading.Event()
    sent = [0]

    def feed() -> None:
        while not ended.wait(0.0005):
            push.send(b"%d" % sent[0])
            sent[0] += 1

    thread = threading.Thread(target=feed)
    thread.start()
    got: list[int] = []
    number, goes_on = 0, True
    while goes_on:
        number += 1
        got += map(int, stream.read(number, available_now=True))
        goes_on = stream.report()["bounded"]
    stream.coordinator.commit(number)
    receiver = stream.receiver()
    stream.end()
    assert gone(receiver, 20)
    ended.set()
    thread.join(20)
    assert "are lost" not in capfd.readouterr().err
    following = Stream(connect=push.endpoints[0], triggerSeconds="1")
    while len(got) < sent[0]:
        number += 1
        got += map(int, following.read(number))
    assert got == list(range(sent[0]))
    following.end()


def test_a_late_task_starts_nothing_when_the_query_has_ended(push: omq.PUSH, stream: Stream) -> None:
    push.send_many(numbered(0, 250))
    assert stream.read(1) == numbered(0, 100)
    late, receiver = stream.request(2), stream.receiver()
    stream.end()
    begun = time.monotonic()
    with pytest.raises(omq.StateError, match="the query has ended"):
        list(receiver_client.read(stream.settings, late))
    assert time.monotonic() - begun < 5
    assert gone(receiver, 20)
    assert push.peers == []


def test_a_receiver_reconnects_to_the_coordinator(push: omq.PUSH, stream: Stream) -> None:
    push.send_many(numbered(0, 250))
    assert stream.read(1) == numbered(0, 100)
    receiver = stream.receiver()
    for _ in range(3):
        (registered,) = stream.coordinator._receivers.values()
        registered.channel.close()
        # A task that comes sooner has another one started.
        until(
            lambda: [one for one in stream.coordinator._receivers.values() if one is not registered],  # noqa: B023
            "the return of the receiver",
        )
        assert stream.read(1) == numbered(0, 100)
        assert stream.receiver() == receiver
    assert stream.lost() == []
    assert stream.read(2) == numbered(100, 100)
