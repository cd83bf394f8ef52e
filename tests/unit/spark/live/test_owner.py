"""Owners and coordinators as processes, without Spark: who reads what, on this host and on another."""

import contextlib
import dataclasses
import logging
import os
import pickle
import resource
import secrets
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow", reason="!! omq.spark IS NOT TESTED: pip install 'omq-zmtp[spark]'")

import omq  # noqa: E402
from omq.spark.live import borrow, settings  # noqa: E402
from omq.spark.live.borrow import Share  # noqa: E402
from omq.spark.live.note import Note  # noqa: E402
from omq.spark.live.owner import LEAST, Owner, names_of  # noqa: E402
from omq.spark.live.run import Run  # noqa: E402
from omq.spark.live.settings import Settings  # noqa: E402
from omq.spark.live.source import _lost  # noqa: E402
from omq.spark.live.trusted import FROZEN, SILENCE, Channel, Unreachable  # noqa: E402
from tests.waits import until  # noqa: E402

KEEP = 3.0  # seconds that owners outlive a run


@pytest.fixture(autouse=True)
def loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")


@pytest.fixture
def push() -> Iterator[omq.PUSH]:
    with omq.PUSH(bind="tcp://127.0.0.1:*", linger=0, send_hwm=0) as sock:
        yield sock


class Stream:
    """A stream as Spark's processes see it."""

    def __init__(self, **options: str) -> None:
        self.settings = parsed(**options)
        self.name = secrets.token_hex(16)
        self.elsewhere = False
        self.planned = True
        self.begin()

    def begin(self) -> None:
        """The query's run begins."""
        self.run = Run(self.name, self.settings.keep_seconds, names_of(self.settings))

    def end(self) -> None:
        """The process that Spark asks for offsets is gone."""
        self.run.close()

    def share(self, number: int, drain: str = "") -> Share:
        assert self.run.place is not None
        place = self.run.place
        if self.elsewhere:
            place = dataclasses.replace(place, host="elsewhere")
        endpoint = self.settings.endpoints[0]
        name = names_of(self.settings)[0]
        return Share(name, endpoint, number - 1, number, drain, self.planned, place, self.run.secret)

    def read(self, number: int, drain: str = "", columns: tuple[str, ...] = ("value",)) -> list[Any]:
        """The values of one microbatch."""
        chosen = dataclasses.replace(self.settings, columns=columns)
        batches = list(borrow.read(chosen, self.share(number, drain)))
        return [row[columns[0]] for batch in batches for row in batch.to_pylist()]

    def coordinator(self) -> int:
        """The coordinator's process, which listens where the run's line leads to."""
        while True:
            with contextlib.suppress(OSError):
                told = self.run._channel.sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
                return int(struct.unpack("3i", told)[0])
            time.sleep(0.02)

    def owner(self) -> int:
        """The owner's process, which listens at the port that its status comes from."""
        place = borrow._find(self.settings, self.share(1))
        return int(place.name.split("/")[2])


def parsed(**options: str) -> Settings:
    return settings.parse(settings.STREAM_READ, {"socket": "PULL", "keepSeconds": str(KEEP), **options})


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
    sent = [[b"a"], [b"b", b"c"], [b""], [b"", b""], [b"x" * (20 << 20)], [b"d"]]
    for message in sent:
        push.send_multipart(message)
    found, batch = stream.read(1, columns=("parts", "sequence")), 1
    # Once more, before the next microbatch commits this one.
    one = next(
        borrow.read(dataclasses.replace(stream.settings, columns=("sequence", "endpoint", "parts")), stream.share(1))
    )
    assert one.to_pylist()[0] == {"sequence": 0, "endpoint": push.endpoints[0], "parts": [b"a"]}
    while len(found) < len(sent):  # what comes behind a large one may be in the next microbatch
        batch += 1
        found += stream.read(batch, columns=("parts", "sequence"))
    assert found == sent


def test_one_that_does_not_fit_the_columns_waits_until_they_fit(push: omq.PUSH, stream: Stream) -> None:
    push.send(b"0")
    push.send_multipart([b"1", b"1"])
    push.send(b"2")
    for _ in range(2):
        with pytest.raises(omq.MultipartError, match="a message of 2 parts"):
            stream.read(1)
    assert stream.read(1, columns=("parts",)) == [[b"0"], [b"1", b"1"], [b"2"]]


def test_the_next_run_gets_what_the_last_one_left(push: omq.PUSH, stream: Stream) -> None:
    push.send_many(numbered(0, 350))
    assert stream.read(1) == numbered(0, 100)
    owner = stream.owner()
    stream.end()
    while push.peers:
        time.sleep(0.01)
    push.send_many(numbered(350, 50))
    stream.begin()
    assert stream.read(1) == numbered(0, 100)
    assert stream.owner() == owner
    assert stream.read(2) + stream.read(3) + stream.read(4) == numbered(100, 300)


def test_after_the_time_that_they_are_kept_all_processes_are_gone(push: omq.PUSH, stream: Stream) -> None:
    push.send_many(numbered(0, 150))
    stream.read(1)
    owner = stream.owner()
    stream.end()
    assert not gone(owner, 0.5)
    assert gone(owner, KEEP + 10)
    stream.begin()
    assert stream.read(1) == []
    assert stream.owner() != owner


def test_one_that_has_nothing_to_keep_ends_with_the_run(push: omq.PUSH) -> None:
    stream = Stream(connect=push.endpoints[0], triggerSeconds="0.3", keepSeconds="60")
    assert stream.read(1) == []
    owner = stream.owner()
    stream.end()
    assert gone(owner, 20)


def test_a_killed_owner_is_replaced_and_told_of(push: omq.PUSH, stream: Stream) -> None:
    push.send_many(numbered(0, 100))
    assert stream.read(1) == numbered(0, 100)
    assert stream.run.status()["lost"] == []  # the owner has told what it has: it seldom does by itself
    os.kill(stream.owner(), signal.SIGKILL)
    while push.peers:
        time.sleep(0.01)
    push.send_many(numbered(100, 10))
    assert stream.read(1) == numbered(100, 10)
    (lost,) = stream.run.status()["lost"]
    assert (lost["microbatch"], lost["rows"], lost["endpoint"]) == (1, 100, push.endpoints[0])
    assert stream.run.status()["lost"] == []


@pytest.mark.parametrize("asked", [False, True], ids=["goes on", "fails"])
def test_an_owner_killed_in_the_midst_of_a_microbatch_ends_it(
    asked: bool, push: omq.PUSH, caplog: pytest.LogCaptureFixture
) -> None:
    stream = Stream(
        connect=push.endpoints[0], triggerSeconds="20", batchBytes="1000", failOnDataLoss=str(asked).lower()
    )
    push.send_many([b"%03d" % n + b" " * 100 for n in range(100)])
    reader = borrow.read(stream.settings, stream.share(1))
    begun = next(reader)
    os.kill(stream.owner(), signal.SIGKILL)
    if asked:
        with pytest.raises(omq.StateError, match=r"in the midst of a microbatch.*failOnDataLoss=true"):
            list(reader)
    else:
        with caplog.at_level(logging.WARNING, "omq.spark"):
            rest = list(reader)
        values = [int(value) for batch in [begun, *rest] for value in batch["value"].to_pylist()]
        assert values == list(range(len(values)))
        assert "what it had read ahead is lost" in caplog.text
    stream.end()


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[Channel]:
    """The lines that this process has to owners, the newest last."""
    found: list[Channel] = []
    reach = borrow.reach

    def kept(place: Any, secret: bytes) -> Channel:
        channel = reach(place, secret)
        if "/run" not in place.name and place.name.count("/") > 2:
            found.append(channel)
        return channel

    monkeypatch.setattr(borrow, "reach", kept)
    return found


@pytest.mark.parametrize("elsewhere", [False, True], ids=["this host", "another host"])
def test_a_line_that_breaks_costs_nothing_while_the_owner_lives(
    elsewhere: bool, push: omq.PUSH, lines: list[Channel]
) -> None:
    stream = Stream(connect=push.endpoints[0], batchBytes="1000", maxRowsPerTrigger="100", triggerSeconds="20")
    stream.elsewhere = elsewhere
    push.send_many([b"%03d" % n + b" " * 100 for n in range(100)])
    values = []
    for number, batch in enumerate(borrow.read(stream.settings, stream.share(1))):
        values += [int(value) for value in batch["value"].to_pylist()]
        if number % 2 == 0:
            lines[-1].sock.close()
    assert values == list(range(100))
    assert len(lines) > 3
    stream.end()


@pytest.mark.parametrize("asked", [False, True], ids=["goes on", "fails"])
def test_an_owner_that_is_killed_while_its_task_comes_back_ends_the_microbatch(
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
    owner = stream.owner()
    ask = borrow._ask

    def answered(share: Share, question: dict[str, Any]) -> dict[str, Any]:
        answer = ask(share, question)
        if answer.get("lives"):
            os.kill(owner, signal.SIGKILL)
            assert gone(owner, 20)
            push.send_many([b"%03d" % n + b" " * 100 for n in range(100, 200)])
        return answer

    monkeypatch.setattr(borrow, "_ask", answered)
    reader = borrow.read(stream.settings, stream.share(1))
    values = [int(value) for _ in range(3) for value in next(reader)["value"].to_pylist()]
    lines[-1].sock.close()
    if asked:
        with pytest.raises(omq.StateError, match=r"in the midst of a microbatch.*failOnDataLoss=true"):
            list(reader)
    else:
        with caplog.at_level(logging.WARNING, "omq.spark"):
            assert list(reader) == []
        assert "what it had read ahead is lost" in caplog.text
    assert values == list(range(len(values)))
    stream.end()


def test_an_owner_that_is_killed_between_two_runs_is_told_of(push: omq.PUSH, stream: Stream) -> None:
    push.send_many(numbered(0, 150))
    assert stream.read(1) == numbered(0, 100)
    owner = stream.owner()
    stream.end()
    while push.peers:
        time.sleep(0.01)
    os.kill(owner, signal.SIGKILL)
    assert gone(owner, 20)
    stream.begin()
    (lost,) = stream.run.status()["lost"]
    assert (lost["microbatch"], lost["rows"], lost["waiting"], lost["why"]) == (1, 100, 50, "has died")


def test_an_owner_that_is_killed_with_the_coordinator_is_told_of(push: omq.PUSH, stream: Stream) -> None:
    push.send_many(numbered(0, 150))
    assert stream.read(1) == numbered(0, 100)
    (known,) = stream.run.status()["partitions"]
    assert (known["rows"], known["unread"]) == (100, 0)
    killed = stream.coordinator(), stream.owner()
    for one in killed:
        os.kill(one, signal.SIGKILL)
    for one in killed:
        assert gone(one, 20)
    assert stream.read(1) == []
    (lost,) = stream.run.status()["lost"]
    assert (lost["microbatch"], lost["rows"], lost["why"]) == (1, 100, "has died")
    assert stream.run.status()["lost"] == []


def test_one_that_leaves_because_nobody_could_want_anything_of_it_is_no_loss(push: omq.PUSH, stream: Stream) -> None:
    assert stream.read(1) == []
    owner = stream.owner()
    (known,) = stream.run.status()["partitions"]
    assert known["rows"] == 0
    stream.end()
    assert gone(owner, 20)
    stream.begin()
    assert stream.run.status()["lost"] == []


def test_the_end_of_a_query_reports_what_cannot_be_counted_and_nothing_that_is_not_lost(
    push: omq.PUSH, caplog: pytest.LogCaptureFixture
) -> None:
    found = parsed(socket="PULL", connect=push.endpoints[0], maxRowsPerTrigger="2", triggerSeconds="5")
    request = {
        "limits": {"rows": 2, "bytes": None, "seconds": 5.0, "quiet": None},
        "columns": ["value"],
        "settings": pickle.dumps(found).hex(),
        "given": 0,
        "drain": "",
    }
    push.send_many(numbered(0, 4))
    one = Owner(found, push.endpoints[0])
    try:
        list(one.read({**request, "read": 1, "after": 0, "planned": True}).follow())
        one.rest()
        assert "A libzmq peer drops what it had queued" in caplog.text
        one.go_on()
        # A former run had planned it and ended before any task asked: this process would know.
        list(one.read({**request, "read": 2, "after": 1, "planned": False}).follow())
        assert "is read anew" not in caplog.text
    finally:
        one.close()


def test_what_is_lost_with_an_owner_is_a_lower_bound() -> None:
    report = {"connection": "c", "why": "has died", "microbatch": 17, "rows": 0, "unread": 0, "waiting": 1004}
    assert "1004 that had arrived, by its last report: a lower bound" in _lost(report, 16)


@pytest.mark.parametrize("planned", [True, False])
def test_a_microbatch_of_a_former_run_that_nobody_has_is_told_of(
    planned: bool, push: omq.PUSH, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = parsed(connect=push.endpoints[0], triggerSeconds="0.2")
    owner, given = Owner(wanted, push.endpoints[0]), pickle.dumps(wanted).hex()
    limits = {"rows": None, "bytes": None, "seconds": 0.1, "quiet": None}
    request = {"after": 0, "limits": limits, "columns": ["value"], "drain": "", "settings": given}
    with caplog.at_level(logging.WARNING, "omq.spark"):
        assert list(owner.read({**request, "read": 1, "planned": planned}).follow()) == []
        assert ("microbatch 1 was planned by a former run" in caplog.text) == (not planned)
        caplog.clear()
        assert list(owner.read({**request, "read": 1, "planned": False}).follow()) == []
        assert caplog.text == ""
    owner.close()


def test_an_owner_that_cannot_be_reached_fails_the_task_and_not_the_microbatch(
    push: omq.PUSH, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    push.send_many(numbered(0, 100))
    stream.owner()
    reach = borrow.reach

    def refused(place: Any, secret: bytes) -> Channel:
        if place.name.count("/") > 2:
            raise Unreachable("no way there")
        return reach(place, secret)

    with monkeypatch.context() as patched:
        patched.setattr(borrow, "reach", refused)
        with pytest.raises(omq.StateError, match=r"on 127\.0\.0\.1, port \d+\) cannot be reached.*no way there"):
            stream.read(1)
    assert stream.read(1) == numbered(0, 100)


def test_a_task_without_descriptors_fails_and_the_next_one_reads_the_same(push: omq.PUSH) -> None:
    stream = Stream(connect=push.endpoints[0], triggerSeconds="1", maxRowsPerTrigger="10")
    push.send_many([b"%d" % n + b" " * 100_000 for n in range(10)])
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    reader = borrow.read(stream.settings, stream.share(1))
    stream.owner()
    heard = Channel.receive
    taken: list[int] = []

    def starved(channel: Channel) -> Any:
        if channel.local and channel.sock.gettimeout() == SILENCE:
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))), limits[1]))
            with contextlib.suppress(OSError):
                while True:
                    taken.append(os.open(os.devnull, os.O_RDONLY))
        return heard(channel)

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


def test_a_late_task_does_not_connect_again_when_the_query_has_ended(push: omq.PUSH, stream: Stream) -> None:
    push.send_many(numbered(0, 250))
    assert stream.read(1) == numbered(0, 100)
    late = stream.share(2)
    stream.end()
    while push.peers:
        time.sleep(0.01)
    with pytest.raises(omq.StateError, match="the query has ended"):
        list(borrow.read(stream.settings, late))
    assert push.peers == []
    stream.begin()
    assert stream.read(2) == numbered(100, 100)


@pytest.mark.parametrize("told", [{"failed": "no luck", "kind": "BindError"}, None], ids=["says why", "is killed"])
def test_an_owner_that_ends_at_its_start_fails_the_task(
    told: dict[str, str] | None, push: omq.PUSH, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []

    def doomed(plan: Any) -> None:
        started.append(plan)
        with contextlib.closing(borrow.reach(plan.coordinator, plan.secret)) as channel:
            channel.send({"own": plan.name, "begins": True})
            if told:
                channel.send(told)

    with monkeypatch.context() as patched:
        patched.setattr(borrow.owner, "start", doomed)
        for number in (1, 2):
            begun = time.monotonic()
            with pytest.raises(omq.OmqError, match="no luck" if told else "has ended"):
                stream.read(1)
            assert time.monotonic() < begun + 5
            assert len(started) == number
    push.send_many(numbered(0, 10))
    assert stream.read(1) == numbered(0, 10)


def test_as_many_subscriptions_and_partitions_as_anybody_wants() -> None:
    wanted = ",".join(f"{n:07d}" for n in range(150_000))
    with omq.XPUB(bind="tcp://127.0.0.1:*", linger=0) as pub:
        stream = Stream(socket="SUB", connect=pub.endpoints[0], subscribe=wanted, triggerSeconds="1")
        (name,) = names_of(stream.settings)
        assert len(name) < 300
        others = parsed(socket="SUB", connect=pub.endpoints[0], subscribe=wanted + ",x", triggerSeconds="1")
        assert names_of(others) != [name]
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
        endpoints = ",".join(f"tcp://127.0.0.1:{port}" for port in range(1, 5_000))
        stream.settings = parsed(connect=endpoints)
        stream.begin()
        begun = time.monotonic()
        assert stream.run.status()["partitions"] == []
        assert time.monotonic() < begun + 4
        stream.end()


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_an_owner_that_stands_still_for_a_while_costs_nothing(push: omq.PUSH, stream: Stream) -> None:
    push.send_many(numbered(0, 50))
    assert stream.read(1) == numbered(0, 50)
    owner = stream.owner()
    push.send_many(numbered(50, 50))
    os.kill(owner, signal.SIGSTOP)
    timer = threading.Timer(SILENCE + 5, os.kill, (owner, signal.SIGCONT))
    timer.start()
    begun = time.monotonic()
    assert stream.read(2) == numbered(50, 50)
    assert time.monotonic() - begun > SILENCE
    assert stream.owner() == owner
    assert stream.run.status()["lost"] == []


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_an_owner_that_stands_still_is_replaced_and_does_not_come_back(push: omq.PUSH, stream: Stream) -> None:
    push.send_many(numbered(0, 50))
    assert stream.read(1) == numbered(0, 50)
    owner = stream.owner()
    os.kill(owner, signal.SIGSTOP)
    try:
        begun = time.monotonic()
        assert stream.read(2) == []
        assert FROZEN - 3 < time.monotonic() - begun < FROZEN + 30
        assert stream.owner() != owner
    finally:
        os.kill(owner, signal.SIGCONT)
    assert gone(owner, KEEP + 10)
    push.send_many(numbered(50, 10))
    assert stream.read(3) == numbered(50, 10)


def test_a_killed_coordinator_is_replaced_and_the_owner_comes_back(push: omq.PUSH) -> None:
    stream = Stream(connect=push.endpoints[0], maxRowsPerTrigger="100", triggerSeconds="0.3")
    ours = stream.coordinator()
    push.send_many(numbered(0, 300))
    assert stream.read(1) == numbered(0, 100)
    owner = stream.owner()
    os.kill(ours, signal.SIGKILL)
    assert gone(ours, 20)
    deadline = time.monotonic() + 20
    while not stream.run.status()["partitions"]:
        assert time.monotonic() < deadline
    assert stream.owner() == owner
    assert stream.read(1) == numbered(0, 100)
    assert stream.read(2) == numbered(100, 100)
    stream.end()


def test_a_coordinator_that_is_killed_between_two_runs_is_replaced_and_the_owner_comes_back(push: omq.PUSH) -> None:
    stream = Stream(connect=push.endpoints[0], maxRowsPerTrigger="100", triggerSeconds="0.3", keepSeconds="20")
    push.send_many(numbered(0, 250))
    assert stream.read(1) == numbered(0, 100)
    owner, killed = stream.owner(), stream.coordinator()
    stream.end()
    while push.peers:
        time.sleep(0.01)
    os.kill(killed, signal.SIGKILL)
    assert gone(killed, 20)
    stream.begin()
    assert stream.read(1) == numbered(0, 100)
    assert stream.owner() == owner
    assert stream.read(2) == numbered(100, 100)
    assert stream.run.status()["lost"] == []
    note = Note(stream.name)
    assert note.read()["port"] == stream.run.place.port
    killed = stream.owner()
    stream.end()
    os.kill(killed, signal.SIGKILL)
    until(lambda: not note.read(), "the coordinator's end", bound=KEEP + 20)


def test_a_subscription_loses_nothing_while_coordinators_are_killed() -> None:
    with omq.XPUB(bind="tcp://127.0.0.1:*", linger=0, xpub_nodrop=True) as pub:
        stream = Stream(
            socket="SUB", connect=pub.endpoints[0], subscribe="", triggerSeconds="0.3", failOnDataLoss="true"
        )
        ended = threading.Event()
        sent = [0]

        def feed() -> None:
            pub.wait_subscribed(timeout=20)
            while not ended.wait(0.001):
                pub.send(b"%d" % sent[0])
                sent[0] += 1

        thread = threading.Thread(target=feed)
        thread.start()
        got: list[int] = []
        number = 0
        for _ in range(3):
            for _ in range(2):
                number += 1
                got += map(int, stream.read(number))
            killed = stream.coordinator()
            os.kill(killed, signal.SIGKILL)
            assert gone(killed, 20)
        ended.set()
        thread.join(20)
        deadline = time.monotonic() + 20
        while len(got) < sent[0]:
            assert time.monotonic() < deadline
            number += 1
            got += map(int, stream.read(number))
        assert got == list(range(sent[0]))
        stream.end()


@pytest.mark.parametrize("more", [{"batchBytes": "8m"}, {"recv_hwm": "7"}, {"maxRowsPerTrigger": "1000"}])
def test_other_options_of_the_next_run_lose_nothing(more: dict[str, str], push: omq.PUSH, stream: Stream) -> None:
    push.send_many(numbered(0, 350))
    assert stream.read(1) == numbered(0, 100)
    owner = stream.owner()
    stream.end()
    while push.peers:
        time.sleep(0.01)
    stream.settings = parsed(connect=push.endpoints[0], triggerSeconds="0.3", **more)
    stream.begin()
    got = stream.read(1)
    for number in range(2, 5):
        got += stream.read(number)
    assert got == numbered(0, 350)
    assert stream.owner() == owner
    push.send_many(numbered(350, 50))
    assert stream.read(5) == numbered(350, 50)


def test_what_the_next_run_does_not_want_is_told_of(push: omq.PUSH, stream: Stream) -> None:
    push.send_many(numbered(0, 150))
    stream.read(1)
    owner = stream.owner()
    stream.end()
    with omq.PUSH(bind="tcp://127.0.0.1:*", linger=0) as other:
        stream.settings = parsed(connect=other.endpoints[0], triggerSeconds="0.3")
        stream.begin()
        (lost,) = stream.run.status()["lost"]
        assert (lost["rows"], lost["waiting"]) == (100, 50)
        assert "others now" in lost["why"]
        assert gone(owner, 20)


@pytest.mark.parametrize("multipart", [False, True], ids=["held", "multipart"])
def test_more_messages_that_came_one_by_one_than_a_message_could_tell_of(multipart: bool, push: omq.PUSH) -> None:
    count = 60_000
    stream = Stream(connect=push.endpoints[0], maxRowsPerTrigger="100", triggerSeconds="20", recv_hwm="0")
    if multipart:
        for number in range(count):
            push.send_multipart([b"%d" % number, b""])
    else:
        push.send_many(numbered(0, count))
    assert len(stream.read(1, columns=("parts",))) == 100
    if not multipart:
        stream.end()
        stream.begin()
    stream.settings = parsed(
        connect=push.endpoints[0], maxRowsPerTrigger=str(count - 100), triggerSeconds="20", recv_hwm="0"
    )
    assert [int(parts[0]) for parts in stream.read(2, columns=("parts",))] == list(range(100, count))
    stream.end()


def test_a_crowd_of_strangers_keeps_nobody_out(push: omq.PUSH, stream: Stream) -> None:
    assert stream.run.place is not None
    port = stream.run.place.port
    with contextlib.ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        push.send_many(numbered(0, 10))
        for elsewhere in (False, True):
            stream.elsewhere = elsewhere
            assert stream.read(1) == numbered(0, 10)


def test_few_descriptors_are_enough(push: omq.PUSH) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    stream = Stream(connect=push.endpoints[0], batchBytes="64k", triggerSeconds="2", maxRowsPerTrigger="3000")
    push.send_many([b"%04d" % number + b" " * 20_000 for number in range(3000)])
    # What is started from here on inherits it.
    resource.prlimit(0, resource.RLIMIT_NOFILE, (256, limits[1]))
    try:
        assert [int(value[:4]) for value in stream.read(1)] == list(range(3000))
    finally:
        resource.prlimit(0, resource.RLIMIT_NOFILE, limits)
    stream.end()


def test_why_an_owner_cannot_begin_is_told_to_the_task() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        url = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        stream = Stream(bind=url)
        with pytest.raises(omq.BindError, match="in use"):
            stream.read(1)
        stream.end()


def test_nobody_there_is_told_to_the_task() -> None:
    stream = Stream(connect="tcp://127.0.0.1:1", connectTimeout="0.3", triggerSeconds="5")
    for _ in range(2):
        with pytest.raises(omq.ConnectError, match=r"connectTimeout=0.3 s; last failure: .*refused"):
            stream.read(1)
    stream.end()


def test_a_drain_ends_when_it_is_quiet_and_goes_on_where_there_was_no_room(push: omq.PUSH) -> None:
    stream = Stream(connect=push.endpoints[0], maxRowsPerTrigger="100", quietSeconds="0.3")
    push.send_many(numbered(0, 150))
    assert stream.read(1, "run") == numbered(0, 100)
    (one,) = stream.run.status()["partitions"]
    assert (one["microbatch"], one["bounded"], one["rows"], one["waiting"]) == (1, True, 100, 50)
    assert stream.read(2, "run") == numbered(100, 50)
    (one,) = stream.run.status()["partitions"]
    assert (one["microbatch"], one["bounded"], one["connected"], one["taken"]) == (2, False, 1, 150)
    stream.end()


def test_a_drain_that_has_a_time_ends_in_it_however_short_its_microbatches_are(push: omq.PUSH) -> None:
    stream = Stream(connect=push.endpoints[0], maxRowsPerTrigger="10", quietSeconds="5", triggerSeconds="1")
    push.send_many(numbered(0, 1000))
    began, bounded, number, got = time.monotonic(), True, 0, []
    while bounded:
        number += 1
        got += stream.read(number, "run")
        (one,) = stream.run.status()["partitions"]
        bounded = one["bounded"]
        time.sleep(0.1)  # what Spark does in between
    assert got == numbered(0, len(got))
    assert 10 < len(got) < 1000
    assert time.monotonic() - began < 30
    assert stream.read(number + 1, "another run") == numbered(len(got), 10)
    stream.end()


def test_a_drain_that_has_none_reads_what_is_there_whole(push: omq.PUSH, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omq.spark.live.reading.DRAINING", 1.0)
    stream = Stream(connect=push.endpoints[0], maxRowsPerTrigger="10", quietSeconds="0.3")
    push.send_many(numbered(0, 150))
    got, number = [], 0
    while len(got) < 150:
        number += 1
        got += stream.read(number, "run")
        time.sleep(0.1)
    assert got == numbered(0, 150)
    stream.end()


def test_a_microbatch_without_bounds_has_one_all_the_same(push: omq.PUSH, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omq.spark.live.owner.available", lambda: 1 << 20)
    wanted = parsed(connect=push.endpoints[0], triggerSeconds="30")
    owner, given = Owner(wanted, push.endpoints[0]), pickle.dumps(wanted).hex()
    limits = {"rows": None, "bytes": None, "seconds": 30.0, "quiet": None}
    body = b"x" * (8 << 20)
    push.send_many([body] * 20)
    found = owner.read(
        {"read": 1, "after": 0, "planned": True, "limits": limits, "columns": ["value"], "drain": "", "settings": given}
    )
    assert sum(one.size for one in found.follow()) == LEAST
    assert found.bounded
    assert owner.status()["bounded"]
    owner.commit(1)
    assert sum(one.rows for one in owner._uncommitted) == 0
    owner.close()
