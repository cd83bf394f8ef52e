"""Workers that are killed or stopped while a PUSH streams: the others get the rest."""

import signal
from pathlib import Path

import pytest

import omq
from tests.fault.message_history import History
from tests.fault.stream_endpoints import End, streaming
from tests.support.fork_server import SOCKETS, ForkedProcess
from tests.support.waits import until

SMALL = {"send_hwm": 20, "recv_hwm": 20, "send_buffer": 8192, "recv_buffer": 8192}
WORKER = f"""
import sys, omq
with omq.PULL(connect=sys.argv[1], **{SMALL}) as pull, omq.PUSH(connect=sys.argv[2], **{SMALL}) as results:
    while True:
        results.send_multipart([sys.argv[3].encode(), *pull.recv_multipart()])
"""


@pytest.fixture
def workers():
    """Starts workers; kills those that are left."""
    started = []

    def start(name, source, sink):
        started.append(ForkedProcess("-c", WORKER, source, sink, name, template=SOCKETS))
        return started[-1]

    yield start
    for one in started:
        one.kill()
        one.wait()


def reporting(history):
    """Takes what workers have done."""

    async def role(end):
        while not end.over.is_set():
            try:
                worker, *message = await end.do("recv_multipart", timeout=0.02)
            except omq.Timeout:
                continue
            history.receive(worker.decode(), message)

    return role


@pytest.fixture(params=["asyncio", "blocking"])
def crew(request, workers):
    """A PUSH, three workers, and who takes their results: the history, the PUSH's end and the processes."""
    history = History()
    results = End(request.param, "PULL", reporting(history), "tcp://127.0.0.1:*", bind=True)
    push = End(
        request.param,
        "PUSH",
        streaming(history, 1, 600, pace=4, largest=5000),
        "tcp://127.0.0.1:*",
        bind=True,
        **SMALL,
    )
    processes = {name: workers(name, push.endpoint, results.endpoint) for name in ("one", "two", "three")}
    until(lambda: len({who for _, (who, _) in tuple(history.received)}) == 3, lambda: "all three work")
    yield history, push, processes
    for end in (push, results):
        end.over.set()
        end.join()


def by(history, worker):
    return history.received[1, (worker, "")]


def test_a_worker_that_is_killed_takes_only_its_own_with_it(crew):
    history, push, processes = crew
    processes["one"].kill()
    until(lambda: len(push.socket.peers) == 2, lambda: f"the end of the worker; {len(push.socket.peers)} peers")
    mark = history.accepted[1][-1]
    until(lambda: mark + 200 in history.got(1), lambda: "the others go on")
    until(lambda: not [n for n in history.missing(1) if mark + 1 < n < mark + 200], lambda: "the rest comes")
    lost = [number for number in history.missing(1) if number <= mark + 1]
    history.check(streams=2)  # the messages that waited for it come later, through the others
    # On their way to it, or finished and not reported: the queues of both sockets, and the buffers between.
    assert len(lost) <= 100
    assert all(max(by(history, worker)) > mark for worker in ("two", "three"))  # both others went on


def test_a_stopped_worker_delays_no_other(crew):
    history, _, processes = crew
    processes["one"].send_signal(signal.SIGSTOP)
    status = Path(f"/proc/{processes['one'].pid}/status")
    until(lambda: "State:\tT" in status.read_text(), "the stop")
    before = len(by(history, "two")) + len(by(history, "three"))
    until(lambda: len(by(history, "two")) + len(by(history, "three")) > before + 300, lambda: "the others go on")
    processes["one"].send_signal(signal.SIGCONT)
    mark = history.accepted[1][-1]
    until(lambda: not [n for n in history.missing(1) if n <= mark], lambda: f"everything; {history.missing(1)[:5]}")
    history.check()
