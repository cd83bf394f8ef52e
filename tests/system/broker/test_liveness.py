"""The broker's heartbeats: a worker that does not answer is dead, a worker that is busy is not."""

from __future__ import annotations

import signal
import subprocess
from typing import Final

import pytest

import omq
from omq.broker import Client, Server, TopicError
from tests.support.fork_server import ForkedProcess
from tests.support.parameters import each_value_once
from tests.support.waits import until

JOBS: Final = "jobs:round-robin:transient"

WORKER = """
import ctypes, sys, time
how, seconds = sys.argv[2], float(sys.argv[3])

def work():
    end = time.monotonic() + seconds
    if how.endswith("asleep"):
        time.sleep(seconds)
    elif how.endswith("with the GIL"):
        ctypes.PyDLL(None).usleep(int(seconds * 1e6))
    else:
        while time.monotonic() < end:
            pass

if how.startswith("asyncio"):
    import asyncio
    import omq.asyncio.broker as broker

    async def main():
        async with broker.Client(sys.argv[1]) as client, await client.consume("jobs", ack_timeout=60) as jobs:
            job = await jobs.recv(timeout=20)
            print("begun", flush=True)
            work()
            await job.ack()
            print("done", flush=True)
    asyncio.run(main())
else:
    import omq.broker as broker
    with broker.Client(sys.argv[1]) as client, client.consume("jobs", ack_timeout=60) as jobs:
        job = jobs.recv(timeout=20)
        print("begun", flush=True)
        work()
        job.ack()
        client.flush()
        print("done", flush=True)
"""

HOLDER = """
import sys, time
import omq.broker as broker
with broker.Client(sys.argv[1]) as client, client.subscribe("feed", name="reader", replay="earliest") as reader:
    reader.ack(reader.recv(timeout=20))
    client.flush()
    print("holds", flush=True)
    time.sleep(60)
"""


@each_value_once(twin=["blocking", "asyncio"], how=["asleep", "in Python", "with the GIL"])
def test_a_worker_that_works_keeps_its_job(twin: str, how: str) -> None:
    """A busy worker keeps its job until `ack_timeout`, even if it blocks its event loop."""
    with (
        Server(memory=True, topics=[JOBS], heartbeat_interval=0.2, heartbeat_timeout=0.6) as server,
        Client(server.endpoints["zmtp"], timeout=20.0) as client,
    ):
        client.publish("jobs", b"long")
        arguments = (server.endpoints["zmtp"], f"{twin} {how}", "1.8")
        worker = ForkedProcess("-c", WORKER, *arguments, stdout=subprocess.PIPE, text=True)
        assert worker.stdout is not None
        try:
            assert worker.stdout.readline() == "begun\n"
            with client.consume("jobs") as other, pytest.raises(omq.ReceiveTimeout):
                other.recv(timeout=1.2)  # twice the time of the heartbeats
            assert worker.stdout.readline() == "done\n"
            with client.consume("jobs") as other, pytest.raises(omq.ReceiveTimeout):
                other.recv(timeout=0.2)
        finally:
            worker.kill()
            worker.wait()
            worker.stdout.close()


def test_a_worker_that_is_stopped_loses_its_job_after_the_heartbeats(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "omq.broker")
    with (
        Server(memory=True, topics=[JOBS], heartbeat_interval=0.2, heartbeat_timeout=0.6) as server,
        Client(server.endpoints["zmtp"], timeout=20.0) as client,
    ):
        client.publish("jobs", b"long")
        arguments = (server.endpoints["zmtp"], "blocking asleep", "60")
        worker = ForkedProcess("-c", WORKER, *arguments, stdout=subprocess.PIPE, text=True)
        assert worker.stdout is not None
        try:
            assert worker.stdout.readline() == "begun\n"
            worker.send_signal(signal.SIGSTOP)
            with client.consume("jobs") as other:
                job = other.recv(timeout=20.0)  # a third of its ack timeout
                assert job.deliveries == 2
                job.ack()
            assert "its 1 messages in flight go to others" in caplog.text
        finally:
            worker.kill()
            worker.wait()
            worker.stdout.close()


def test_a_holder_that_is_stopped_loses_its_durable_subscription_after_the_heartbeats(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "omq.broker")
    with (
        Server(
            memory=True, topics=["feed:broadcast:transient"], heartbeat_interval=0.3, heartbeat_timeout=1.5
        ) as server,
        Client(server.endpoints["zmtp"], timeout=20.0) as client,
    ):
        client.publish_many("feed", [b"1", b"2"])
        holder = ForkedProcess("-c", HOLDER, server.endpoints["zmtp"], stdout=subprocess.PIPE, text=True)
        assert holder.stdout is not None
        try:
            assert holder.stdout.readline() == "holds\n"
            with pytest.raises(TopicError, match="already open"):
                client.subscribe("feed", name="reader")
            holder.send_signal(signal.SIGSTOP)
            until(lambda: not client.durables("feed")[0].held)
            with client.subscribe("feed", name="reader") as standby:
                assert standby.recv(timeout=20.0).body == b"2"
            (lost,) = [one for one in caplog.records if getattr(one, "event", "") == "connection_lost"]
            assert lost.__dict__["durables"] == ["feed/reader"]
        finally:
            holder.kill()
            holder.wait()
            holder.stdout.close()
