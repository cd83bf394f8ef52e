"""The choice of the next endpoint: each once a round, the leader's first, and a growing delay between rounds."""

from __future__ import annotations

import random

import pytest

from omq.broker.client.client_protocol import ClusterInfo
from omq.broker.client.endpoint_pool import NO_ANSWER, EndpointPool
from omq.errors import EndpointError

A, B, C, D = (f"tcp://127.0.0.1:{port}" for port in range(1, 5))


def cluster(*leader: str, members: tuple[str, ...] = (A, B, C), role: str = "follower") -> ClusterInfo:
    return ClusterInfo("orders", role, leader, members)


class Search:
    """Tries endpoints on a clock of its own.

    Attributes:
        now: The time.
        delays: The seconds before each attempt.
    """

    def __init__(self, *given: str) -> None:
        self.endpoints = EndpointPool(given)
        self.now = 0.0
        self.delays: list[float] = []

    def refused(self, about: ClusterInfo | None = None, welcomed: bool = False) -> str:
        """The broker does not serve the client; returns the next endpoint."""
        self.endpoints.lost(self.now, welcomed, str(about or "not the leader"), about, refused=True)
        return self._wait()

    def failed(self, failure: str = "Connection refused") -> str:
        """There was no connection; returns the next endpoint."""
        self.endpoints.lost(self.now, False, failure)
        return self._wait()

    def lost(self, after: float, about: ClusterInfo | None = None) -> str:
        """The connection has served the client for some seconds; returns the next endpoint."""
        self.now += after
        self.endpoints.lost(self.now, True, NO_ANSWER, about)
        return self._wait()

    def _wait(self) -> str:
        self.delays.append(max(self.endpoints.remaining(self.now), 0.0))
        self.now += self.delays[-1]
        return self.endpoints.current


@pytest.fixture(autouse=True)
def no_jitter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "uniform", lambda low, high: high)


def test_endpoints_are_tried_in_turn_with_a_growing_delay_between_rounds():
    search = Search(A, B, C)
    assert [search.failed() for _ in range(9)] == [B, C, A] * 3
    assert search.delays == pytest.approx([0, 0, 0.02, 0, 0, 0.04, 0, 0, 0.08])
    for _ in range(60):
        search.failed()
    assert max(search.delays) == 1.0


def test_an_endpoint_that_is_given_twice_is_one():
    search = Search(A, B, A)
    assert [search.failed() for _ in range(4)] == [B, A, B, A]


def test_the_leader_that_a_follower_names_is_next_at_once():
    search = Search(A, B, C)
    assert search.refused(cluster(C)) == C
    assert search.delays == [0]
    assert search.failed() == B  # it is dead, and A was tried
    assert search.failed() == C
    assert search.delays == pytest.approx([0, 0, 0.02])


def test_a_leader_with_several_endpoints():
    search = Search(A)
    assert search.refused(cluster(D, C)) == D
    assert search.failed() == C
    assert search.failed() == B  # it remembers the members


def test_two_followers_that_name_each_other_are_asked_with_a_growing_delay():
    search = Search(A, B)
    for _ in range(50):
        other = A if search.endpoints.current == B else B
        assert search.refused(cluster(other, members=(A, B))) == other
    assert search.delays[1::2] == pytest.approx([min(0.02 * 2**n, 1.0) for n in range(25)])
    assert not any(search.delays[::2])


def test_a_follower_that_names_itself_is_not_asked_again_at_once():
    search = Search(A)
    for _ in range(3):
        assert search.refused(cluster(A, members=())) == A
    assert search.delays == pytest.approx([0.02, 0.04, 0.08])


def test_a_leader_that_refuses_every_request_is_asked_with_a_growing_delay():
    search = Search(A)
    leads = cluster(A, members=(A,), role="leader")
    for _ in range(8):
        search.refused(leads, welcomed=True)
    assert search.delays == pytest.approx([0, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0])  # the first at once


def test_a_leader_that_steps_down_is_left_at_once():
    search = Search(A, B, C)
    for _ in range(12):
        search.failed()
    search.now += 60
    search.endpoints.lost(search.now, True, "not the leader", cluster(A, role="leader"), refused=True)
    assert (search.endpoints.current, search.endpoints.remaining(search.now)) == (B, 0)
    assert search.endpoints.attempt_timeout == 2.0
    assert search.endpoints.failures("") == f"{A}: not the leader; {B}: {NO_ANSWER}"


def test_a_single_broker_is_asked_as_ever():
    search = Search(A)
    assert [search.failed() for _ in range(3)] == [A] * 3
    assert search.delays == pytest.approx([0.02, 0.04, 0.08])
    assert search.lost(10.0) == A  # at once
    assert search.lost(0.5) == A  # after the shortest delay
    assert search.lost(0.5) == A
    assert search.delays[3:] == pytest.approx([0, 0.02, 0.02])
    assert search.endpoints.attempt_timeout is None
    assert search.endpoints.failures("Connection refused") == ""


def test_a_lost_connection_goes_on_at_the_next_endpoint():
    search = Search(A, B)
    assert search.lost(10.0, cluster(A, members=(A, B, D), role="leader")) == B
    assert search.failed() == D
    assert search.failed() == A


def test_a_member_that_left_the_cluster_is_forgotten():
    search = Search(A)
    assert search.refused(cluster(members=(A, B))) == B
    assert search.refused(cluster(members=(A, C))) == C
    assert [search.failed() for _ in range(3)] == [A, C, A]


def test_endpoints_that_no_client_can_use_are_skipped():
    search = Search(A)
    odd = "", "tcp//b", "nonsense", "tcp://*:1", "udp://127.0.0.1:1"
    assert search.refused(ClusterInfo("orders", "follower", odd, (*odd, B))) == B


def test_tls_is_not_given_up():
    search = Search("wss://127.0.0.1:1", "wss://127.0.0.1:2")
    about = ClusterInfo("orders", "follower", (A, "wss://127.0.0.1:3"), (A, B, "wss://127.0.0.1:4"))
    assert search.refused(about) == "wss://127.0.0.1:3"
    assert [search.failed() for _ in range(3)] == ["wss://127.0.0.1:2", "wss://127.0.0.1:4", "wss://127.0.0.1:1"]


def test_an_attempt_has_more_time_in_each_round():
    search = Search(A, B)
    times = []
    for _ in range(12):
        times.append(search.endpoints.attempt_timeout)
        search.failed()
    assert times[::2] == [2.0, 4.0, 8.0, 16.0, 16.0, 16.0]


def test_failures_name_each_endpoint_once_with_its_last_failure():
    search = Search(A, B)
    assert search.endpoints.failures("Connection refused") == ""
    search.failed("no route")
    assert search.endpoints.failures("") == f"{A}: no route; {B}: {NO_ANSWER}"
    search.refused(cluster(members=(A, B)))
    text = "a follower of the cluster 'orders', which has no leader now"
    assert search.endpoints.failures("") == f"{A}: no route; {B}: {text}"
    assert search.endpoints.failures("Connection refused") == f"{B}: {text}; {A}: Connection refused"


def test_failures_are_bounded():
    search = Search(A)
    for port in range(1000, 1100):
        search.refused(cluster(f"tcp://127.0.0.1:{port}"))
    assert search.endpoints.failures("x").count("follower") <= 32


@pytest.mark.parametrize(("given", "kind"), [((), ValueError), ((A, "nonsense"), EndpointError), ("", EndpointError)])
def test_wrong_endpoints(given, kind):
    with pytest.raises(kind):
        EndpointPool(given)
