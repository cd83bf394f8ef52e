"""A socket that is closed: what each of its calls and properties does, in both twins; and what cannot be copied."""

from __future__ import annotations

import copy
import pickle

import pytest

import omq
import omq.asyncio
from tests.support.waits import BOUND, until

on_each_twin = True  # each has calls of its own

#: What raises, by the type of socket that it needs.
REFUSED = {
    "bind": lambda one: one.bind("inproc://other"),
    "connect": lambda one: one.connect("inproc://other"),
    "unbind": lambda one: one.unbind("inproc://other"),
    "disconnect": lambda one: one.disconnect("inproc://other"),
    "send": lambda one: one.send(b"x"),
    "send_multipart": lambda one: one.send_multipart([b"x"]),
    "send_many": lambda one: one.send_many([b"x"]),
    "send_nowait": lambda one: one.send_nowait(b"x"),
    "send_multipart_nowait": lambda one: one.send_multipart_nowait([b"x"]),
    "send_many_nowait": lambda one: one.send_many_nowait([b"x"]),
    "poll_nowait": lambda one: one.poll_nowait(),
    "recv": lambda one: one.recv(),
    "recv_multipart": lambda one: one.recv_multipart(),
    "recv_many": lambda one: one.recv_many(),
    "recv_into": lambda one: one.recv_into(bytearray(1)),
    "recv_message": lambda one: one.recv_message(),
    "recv_columns": lambda one: one.recv_columns(bytearray(8), bytearray(8)),
    "poll": lambda one: one.poll(),
    "fileno": lambda one: one.fileno(),
    "flush": lambda one: one.flush(),
    "drain": lambda one: one.drain(),
    "wait_connected": lambda one: one.wait_connected(),
    "wait_subscribed": lambda one: one.wait_subscribed(),
    "subscribe": lambda one: one.subscribe(b"x"),
    "unsubscribe": lambda one: one.unsubscribe(b"x"),
    "connect_peer": lambda one: one.connect_peer("inproc://peer"),
    "topics_count": lambda one: one.topics_count,
    "join": lambda one: one.join("x"),
    "leave": lambda one: one.leave("x"),
    "monitor": lambda one: one.monitor(),
    "set_options": lambda one: one.set_options(linger=0),
    "set_options of what is fixed": lambda one: one.set_options(identity=b"x"),
    "set_options of nothing": lambda one: one.set_options(),
}
KINDS = {
    "drain": "PULL",
    "wait_subscribed": "PUB",
    "subscribe": "SUB",
    "unsubscribe": "SUB",
    "connect_peer": "PEER",
    "topics_count": "SUB",
    "join": "DISH",
    "leave": "DISH",
}

#: What one twin has alone.
ONE_TWIN = {
    "recv_columns": "blocking",
    **dict.fromkeys(("send_nowait", "send_multipart_nowait", "send_many_nowait", "poll_nowait"), "asyncio"),
}

#: What goes on to answer, and how.
ACCEPTED = {
    "closed": True,
    "endpoints": [],
    "peers": [],
    "stats": omq.SocketStats(*[0] * 10),
    "socket_type": omq.SocketType.DEALER,
    "send_timeout": 3.0,
    "recv_timeout": 4.0,
    "lingers": False,
}

#: What the engine and the context call, of the one twin or the other.
INNARDS = {
    *(
        "attended",
        "begin_close",
        "cease_watching",
        "close_after_fork",
        "dispatch",
        "close_with_context",
        "close_at_exit",
        "finish_close",
        "give_up_close",
        "flush_turn",
        "heed_call",
        "leave_to_io_thread",
        "linger_after",
        "lock",
        "report_at_once",
    ),
    *("looks", "poller", "published", "readable", "recv_queue", "send_queue", "set_drowsy", "set_watched", "turn"),
    *("sleeps_long", "watched", "writable"),
}

WAYS = ["close", "close of a new one", "stop", "stop of a new one", "term", "term of a new one"]


@pytest.fixture(params=WAYS)
def closed(request, twin, inproc):
    """Makes a socket, and closes it."""

    def make(kind: str):
        one = twin(kind, send_timeout=3.0, recv_timeout=4.0) if kind == "DEALER" else twin(kind)
        if "new" not in request.param:
            one.bind(inproc)
        how = request.param.split()[0]
        getattr(twin.context if how == "term" else one, how)()
        until(lambda: one.closed and not one.endpoints)  # `term` does not wait for a loop
        return one

    return make


@pytest.mark.parametrize("call", REFUSED)
def test_a_call_is_refused(twin, closed, call):
    if call in ONE_TWIN and twin.name != ONE_TWIN[call]:
        pytest.skip(f"only the {ONE_TWIN[call]} twin has it")
    one = closed(KINDS.get(call, "DEALER"))
    with pytest.raises(omq.ClosedError, match=r"closed|terminated"):
        REFUSED[call](one)


def test_setting_a_timeout_is_refused(twin):
    made = omq.PULL() if twin.name == "blocking" else omq.asyncio.PULL()
    made.stop()
    for name in ("send_timeout", "recv_timeout"):
        with pytest.raises(omq.ClosedError, match="PULL socket is closed"):
            setattr(made, name, 1.0)


@pytest.mark.parametrize("name", ACCEPTED)
def test_a_property_is_there(twin, closed, name):
    if name == "lingers" and twin.name == "asyncio":
        pytest.skip("a blocking socket's")
    one = closed("DEALER")
    assert getattr(one, name) == ACCEPTED[name]


def test_a_closed_socket_may_be_closed_again_and_looked_at(closed):
    one = closed("DEALER")
    one.close()
    one.close(0)
    one.stop()
    one.release_fileno()
    assert one.options.recv_timeout == 4.0
    assert repr(getattr(one, "_socket", one)).endswith("DEALER closed>")


def test_iterating_ends(twin):
    made = omq.PULL() if twin.name == "blocking" else omq.asyncio.PULL()
    made.stop()

    async def read():
        return [message async for message in made]

    assert (twin.wait(read) if twin.name == "asyncio" else list(made)) == []


@pytest.mark.parametrize("kind", [omq.DEALER, omq.asyncio.DEALER], ids=["blocking", "asyncio"])
def test_nothing_public_is_forgotten_here(kind):
    public = {name for name in dir(kind) if not name.startswith("_")}
    assert public - INNARDS <= {*REFUSED, *ACCEPTED, "options", "close", "stop", "release_fileno"}


def test_the_endpoints_are_there_until_the_socket_no_longer_listens(twin, tmp_path):
    push = twin("PUSH", bind=f"ipc://{tmp_path}/s")
    push.send(b"for a peer")
    closing = twin.spawn(push, "close")
    until(lambda: push.closed)
    assert push.endpoints == [f"ipc://{tmp_path}/s"]
    pull = twin("PULL", connect=f"ipc://{tmp_path}/s")
    assert pull.recv(timeout=BOUND) == b"for a peer"
    closing.result()
    assert push.endpoints == []


# Copies


COPY = {"copy": copy.copy, "deepcopy": copy.deepcopy, "pickle": pickle.dumps}


@pytest.mark.parametrize("how", COPY)
def test_errors_about_copies_name_what_to_do(how, inproc):
    with omq.Context() as context, omq.PULL(context, bind=inproc) as pull, pull.monitor() as monitor:
        push = omq.asyncio.PUSH(context)
        for one, word in ((pull, "endpoint"), (push, "endpoint"), (context, "share"), (monitor, "monitor")):
            with pytest.raises(TypeError, match=f"cannot be copied or pickled: .*{word}"):
                COPY[how](one)
        with omq.PUSH(context, connect=inproc) as sender:
            sender.send(b"as before")
            assert pull.recv(timeout=BOUND) == b"as before"
        push.stop()


@pytest.mark.parametrize("how", COPY)
def test_what_a_socket_returns_can_be_copied(how, inproc):
    with omq.Context() as context, omq.PULL(context, bind=inproc) as pull, omq.PUSH(context, connect=inproc) as push:
        push.send(b"x")
        message = pull.recv_message(timeout=BOUND)
        for one in (message, pull.options, *pull.peers):
            copied = COPY[how](one)
            assert (pickle.loads(copied) if how == "pickle" else copied) == one
