"""The wait for the first peer, and counts, without Spark."""

import logging
import time

import pyarrow  # noqa: F401
import pytest

import omq
from omq.spark.live.peers import Peers

REFUSED = "tcp://127.0.0.1:1"


def test_a_connect_timeout_is_an_error_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "omq.spark"), omq.PULL(connect=REFUSED) as pull:
        with pull.monitor() as monitor:
            peers = Peers(pull, REFUSED, 2.0, True)
            while monitor.recv(timeout=20).kind is not omq.EventKind.CONNECT_FAILED:
                pass
        peers._deadline = time.monotonic() + 2.0
        assert not peers.wait(0.1)
        assert not peers.wait(0.05)
        assert [one.message for one in caplog.records if "no peer is connected yet; last failure" in one.message]
        assert len(caplog.records) == 1
        with pytest.raises(omq.ConnectError, match=r"connectTimeout=2 s; last failure: .*connection refused"):
            peers.wait(20)


def test_a_connect_timeout_is_logged_once_and_the_wait_continues(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "omq.spark"), omq.PULL(connect=REFUSED) as pull:
        peers = Peers(pull, REFUSED, 0.1, False)
        assert not peers.wait(0.3)
        assert not peers.wait(0.1)
        assert [one.message for one in caplog.records if "connectTimeout=0.1 s" in one.message]
        assert len(caplog.records) == 2


def test_no_connect_timeout_never_passes() -> None:
    with omq.PULL(connect=REFUSED) as pull:
        assert not Peers(pull, REFUSED, None, True).wait(0.1)


def test_a_wrong_key_is_reported() -> None:
    public, secret = omq.curve_keypair()
    with omq.PUSH(bind="tcp://127.0.0.1:*", security=omq.CurveServer(secret, {public.decode()}), linger=0) as push:
        url = push.endpoints[0]
        client = omq.CurveClient(public)
        with omq.PULL(connect=url, security=client) as pull, pytest.raises(omq.ConnectError, match="last failure: "):
            Peers(pull, url, 1.0, True).wait(10)


def test_a_peer_is_met_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omq.spark.live.peers.MAX_EVENT_WAIT_S", 60.0)
    with omq.PUSH(bind="tcp://127.0.0.1:*", linger=0) as push, omq.PULL(connect=push.endpoints[0]) as pull:
        begun = time.monotonic()
        assert Peers(pull, push.endpoints[0], 60.0, True).wait(60)
        assert time.monotonic() - begun < 30, "a look at intervals must not decide when reading begins"


def test_a_peer_that_has_gone_again_was_there_if_it_left_something() -> None:
    with omq.PULL(bind="tcp://127.0.0.1:*") as pull:
        peers = Peers(pull, pull.endpoints[0], 5.0, True)
        with omq.PUSH(connect=pull.endpoints[0]) as push:
            push.send(b"all of it")
        while pull.peers:
            assert pull.poll(1.0, omq.POLL_IN)
        assert peers.wait(5.0)
        assert pull.recv(timeout=5) == b"all of it"


@pytest.mark.parametrize("left", [False, True], ids=["stays", "left a message"])
def test_a_peer_that_came_before_the_monitor_is_met(left: bool) -> None:
    with omq.PUSH(bind="tcp://127.0.0.1:*") as push, omq.PULL(connect=push.endpoints[0]) as pull:
        pull.wait_connected(timeout=20)
        if left:
            push.send(b"x")
            assert pull.poll(20)
            push.close()
            with pull.monitor() as monitor:
                while pull.peers:
                    monitor.recv(timeout=20)
        peers = Peers(pull, pull.endpoints[0] if pull.endpoints else "tcp://", 0.5, True)
        assert peers.wait(0)
        assert not peers.is_overdue


def test_a_sender_whose_peer_came_before_the_monitor_finds_it() -> None:
    with omq.PULL(bind="tcp://127.0.0.1:*") as pull, omq.PUSH(connect=pull.endpoints[0], linger=0) as push:
        push.wait_connected(timeout=20)
        assert Peers(push, pull.endpoints[0], 0.5, True).wait(0)
