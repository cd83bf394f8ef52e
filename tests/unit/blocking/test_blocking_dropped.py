"""Sockets that are not closed: when the last reference goes they close, with their linger, and warn."""

import gc
import threading
import time
import warnings

import pytest

import omq
from tests.support.waits import descriptors, until
from tests.unit.blocking.conftest import BOUND, asleep

dropping = pytest.warns(ResourceWarning, match="unclosed <omq.P")


@pytest.fixture
def context():
    with omq.Context() as context:
        # The first connection starts the threads, which keep descriptors.
        with omq.PULL(context, bind="tcp://127.0.0.1:*") as pull, omq.PUSH(context, connect=pull.endpoints[0]) as push:
            push.wait_connected(timeout=BOUND)
            pull.wait_connected(timeout=BOUND)
        yield context


@pytest.fixture
def late(tmp_path):
    return f"ipc://{tmp_path}/late"


@pytest.mark.parametrize("endpoint", ["tcp://127.0.0.1:*", "ipc://{}/s", "inproc://dropped"])
def test_a_dropped_socket_is_closed_and_its_descriptors_too(context, endpoint, tmp_path):
    endpoint = endpoint.format(tmp_path)
    before = descriptors()
    pull = omq.PULL(context, bind=endpoint)
    push = omq.PUSH(context, connect=pull.endpoints[0])
    push.wait_connected(timeout=BOUND)
    pull.wait_connected(timeout=BOUND)
    where = pull.endpoints[0]
    with dropping:
        del pull
    with dropping:
        del push
    until(lambda: descriptors() <= before)
    until(lambda: not context._dropped)
    omq.PULL(context, bind=where).close()  # the name is free
    assert list(tmp_path.iterdir()) == []


def test_what_a_dropped_socket_has_accepted_leaves(context, late):
    before = descriptors()
    push = omq.PUSH(context, connect=late)
    push.send_many([b"%d" % number for number in range(100)])
    with dropping:
        del push
    with omq.PULL(context, bind=late) as pull:
        assert [pull.recv(timeout=BOUND) for _ in range(100)] == [b"%d" % number for number in range(100)]
    until(lambda: descriptors() <= before)


def test_a_dropped_socket_lingers_no_longer_than_its_option_allows(context, late):
    before = descriptors()
    push = omq.PUSH(context, connect=late, linger=0.05)
    push.send(b"x")
    begun = time.monotonic()
    with dropping:
        del push
    until(lambda: descriptors() <= before)
    assert 0.04 < time.monotonic() - begun < 5


def test_a_socket_in_a_cycle_goes_with_the_cycle(context, late):
    gc.collect()  # what earlier tests left does not go, with its descriptors, in the middle of this one
    before = descriptors()
    push = omq.PUSH(context, connect=late)
    push.send(b"from a cycle")
    cycle = {"socket": push}
    cycle["self"] = cycle
    with dropping:
        del push, cycle
        gc.collect()
    with omq.PULL(context, bind=late) as pull:
        assert pull.recv(timeout=BOUND) == b"from a cycle"
    until(lambda: descriptors() <= before)


def test_a_call_that_waits_holds_its_socket(context, crew, late):
    pull = omq.PULL(context, bind=late)
    with omq.PUSH(context, connect=late) as push:
        crew(pull.recv)
        asleep(pull)
        with dropping:
            del pull
            gc.collect()
            push.send(b"x")
            assert crew.join() == [b"x"]
            crew._threads.clear()


def test_a_socket_that_was_never_used_goes_silently(context):
    before = descriptors()
    for _ in range(50):
        omq.PULL(context)
    assert descriptors() <= before


def test_term_ends_dropped_sockets_that_linger(late):
    context = omq.Context()
    push = omq.PUSH(context, connect=late)
    push.send(b"no peer takes it")
    with dropping:
        del push
    until(lambda: len(context._dropped) == 1)
    begun = time.monotonic()
    context.term(linger=0.05)
    assert time.monotonic() - begun < 5
    assert not context._dropped


def test_dropping_in_many_threads_at_once(context):
    before = descriptors()

    def drop():
        for _ in range(20):
            pull = omq.PULL(context, bind="tcp://127.0.0.1:*")
            push = omq.PUSH(context, connect=pull.endpoints[0])
            push.send(b"x")
            del pull, push

    with dropping:
        threads = [threading.Thread(target=drop) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(BOUND)
        assert not any(thread.is_alive() for thread in threads)
    # Some of them linger for a peer that has gone.
    context.term(linger=0)
    until(lambda: descriptors() < before)


def test_a_second_close_ends_the_lingering_of_the_first(context, late, crew):
    push = omq.PUSH(context, connect=late)
    push.send(b"no peer takes it")
    crew(push.close)
    until(lambda: push.closed)
    begun = time.monotonic()
    push.close(linger=0.05)
    crew.join()
    assert time.monotonic() - begun < 5


# Contexts that are not terminated

parting = pytest.warns(ResourceWarning, match="a Context was dropped without term")


def _io_threads():
    return [thread for thread in threading.enumerate() if thread.name == "omq-io"]


def test_a_dropped_context_ends_its_threads_and_closes_its_descriptors(tmp_path):
    gc.collect()
    before, threads = descriptors(), _io_threads()
    context = omq.Context()
    with omq.PULL(context, bind=f"ipc://{tmp_path}/s") as pull, omq.PUSH(context, connect=pull.endpoints[0]) as push:
        push.send(b"x")
        assert pull.recv(timeout=BOUND) == b"x"
    with parting:
        del context, pull, push
        until(lambda: gc.collect() >= 0 and _io_threads() == threads)
    until(lambda: descriptors() <= before)


def test_a_context_that_was_never_used_or_is_terminated_is_dropped_in_silence(recwarn, tmp_path):
    for use in (lambda context: None, lambda context: omq.PULL(context, bind=f"ipc://{tmp_path}/s").close()):
        context = omq.Context()
        use(context)
        context.term()
        del context
        omq.Context()
    gc.collect()
    assert not [warning for warning in recwarn if "Context" in str(warning.message)]


def test_nothing_is_called_when_a_terminated_context_goes(monkeypatch):
    """A signal handler's exception would be lost there."""
    called = []
    monkeypatch.setattr(omq.context, "_abandon", lambda *_: called.append(True))
    for ends in (True, False):
        context = omq.Context()
        if ends:
            context.term()
        del context
        gc.collect()
        assert called == [True] * (not ends)


def test_what_was_accepted_leaves_also_where_socket_and_context_are_dropped_together(late):
    gc.collect()
    threads = _io_threads()

    class Owner:
        pass

    owner = Owner()
    owner.itself = owner
    owner.context = omq.Context()
    owner.push = omq.PUSH(owner.context, connect=late)
    owner.push.send_many([b"%d" % number for number in range(100)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a recorded warning would keep the socket
        del owner
        gc.collect()
    with parting:
        with omq.Context() as context, omq.PULL(context, bind=late) as pull:
            assert [pull.recv(timeout=BOUND) for _ in range(100)] == [b"%d" % number for number in range(100)]
        until(lambda: gc.collect() >= 0 and _io_threads() == threads)


def test_a_socket_is_made_once(context, tmp_path):
    with omq.PULL(context, bind=f"ipc://{tmp_path}/s") as pull:
        with pytest.raises(omq.StateError, match="__init__ runs once"):
            pull.__init__(context, bind="tcp://127.0.0.1:*")
        assert len(pull.endpoints) == 1
        with pytest.raises(omq.StateError, match="__init__ runs once"):
            context.__init__()
