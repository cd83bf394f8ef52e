"""A device, its producers and consumers under load, killed with SIGKILL at random: nothing acknowledged is lost."""

import os
from pathlib import Path

import pytest
import zmq

from tests.fault.pzq_chaos import PzqChaos
from tests.support.libzmq_pzq_clients import asked, raw
from tests.support.ports import held

SEEDS = int(os.environ.get("OMQ_FAULT_SEEDS", "200"))


def killed(directory: Path, seed: int, hits: int) -> PzqChaos:
    """Plays one history: kills, a moment of rest, kills, and the end."""
    with held() as receive, held() as send:
        chaos = PzqChaos(directory, seed, (receive, send))
        try:
            chaos.begin()
            for _ in range(hits):
                chaos.hit()
            chaos.rest()
            for number in range(2):
                chaos.begin_producer(number)
            for _ in range(hits):
                chaos.hit()
            chaos.rest()
        finally:
            chaos.end()
        chaos.check()
    assert chaos.received
    return chaos


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_device_whose_world_is_killed_keeps_what_it_acknowledged(tmp_path: Path, seed: int) -> None:
    killed(tmp_path, seed, hits=2)


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_what_was_answered_one_by_one_outlives_a_kill_right_behind_the_answer(tmp_path: Path) -> None:
    answered: list[bytes] = []
    with held() as receive, held() as send:
        chaos = PzqChaos(tmp_path, 0, (receive, send))
        try:
            for life in range(4):
                chaos.begin_device()
                with raw(zmq.DEALER, f"tcp://127.0.0.1:{receive}") as producer:
                    # Of each life another part is written already: none of it, some, all but one.
                    for number in range((1, 50, 70, 130)[life]):
                        body = b"%d.%d" % (life, number)
                        number_it = (b"DEDUP:p:%d" % len(answered),) if life % 2 else ()
                        assert asked(producer, b"id", *number_it, b"", body) == [b"id", b"1", b""]
                        answered.append(body)
                    chaos.kill("device")
            chaos.begin_device()
            with raw(zmq.ROUTER, f"tcp://127.0.0.1:{send}") as consumer:
                for body in answered:
                    peer, key, *_, came = consumer.recv_multipart()
                    assert came == body
                    consumer.send_multipart([peer, key, b"1"])
                consumer.rcvtimeo = 200
                with pytest.raises(zmq.Again):
                    consumer.recv_multipart()
        finally:
            chaos.end()


@pytest.mark.fault
@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("seed", range(2, SEEDS))
def test_a_device_whose_world_is_killed_again_and_again(tmp_path: Path, seed: int) -> None:
    killed(tmp_path, seed, hits=4)
