"""Messages that wait for an XPUB's user leave in rounds, and keep the order of each peer and of each prefix."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

import omq
from tests.support.hypothesis_profiles import examples

STEPS = st.tuples(st.integers(0, 2), st.sampled_from(["want", "leave", "send", "send long"]), st.sampled_from(b"abc"))


@contextlib.contextmanager
def _linked(peers: int, **options: object) -> Iterator[tuple[omq.XPUB, list[omq.XSUB]]]:
    with omq.Context() as context, contextlib.ExitStack() as stack:
        xpub = stack.enter_context(omq.XPUB(context, bind="inproc://mail", linger=0, **options))  # type: ignore[arg-type]
        yield xpub, [stack.enter_context(omq.XSUB(context, connect="inproc://mail", linger=0)) for _ in range(peers)]


def _drained(xpub: omq.XPUB) -> list[bytes]:
    got = []
    with contextlib.suppress(omq.ReceiveTimeout):
        while True:
            got.append(xpub.recv(timeout=0))
    return got


def test_a_peer_that_has_sent_much_lets_the_others_have_their_turn() -> None:
    with _linked(4, recv_hwm=0) as (xpub, (quiet, *busy)):
        for number in range(500):
            for name, peer in zip(b"ABC", busy, strict=True):
                peer.send(b"%c%d" % (name, number))
        assert [xpub.recv(timeout=1) for _ in range(300)][-3:] == [b"A99", b"B99", b"C99"]
        quiet.send(b"quiet")
        quiet.subscribe(b"quiet, too")
        soon = [xpub.recv(timeout=1) for _ in range(8)]
        assert b"quiet" in soon[:4]
        assert b"\1quiet, too" in soon
        rest = _drained(xpub)
        for name in b"ABC":
            sent = [body for body in soon + rest if body[0] == name]
            assert sent == [b"%c%d" % (name, number) for number in range(100, 500)]


def test_a_long_message_counts_for_several() -> None:
    with _linked(2, recv_hwm=0) as (xpub, (one, other)):
        for number in range(100):
            one.send(b"L%d".ljust(64 << 10) % number)
            other.send(b"S%d" % number)
        first = [xpub.recv(timeout=1)[:1] for _ in range(34)]
        assert first.count(b"L") <= 2
        assert len(_drained(xpub)) == 200 - 34


def test_each_peer_has_room_of_its_own_for_what_it_wants() -> None:
    with _linked(2, recv_hwm=5) as (xpub, (one, other)):
        for number in range(1000):
            one.subscribe(b"1-%d" % number)
        other.subscribe(b"2")
        assert b"\x012" in [xpub.recv(timeout=1) for _ in range(3)]
        assert len(_drained(xpub)) == 998


def test_a_raised_mark_lets_in_what_was_kept() -> None:
    with _linked(1, recv_hwm=5) as (xpub, (sub,)):
        for number in range(100):
            sub.subscribe(b"%d" % number)
        assert xpub._engine.pattern.send_queue.mailbox.unread == 5
        xpub.set_options(recv_hwm=50)
        assert xpub._engine.pattern.send_queue.mailbox.unread == 50
        assert _drained(xpub) == [b"\1%d" % number for number in range(100)]


def test_a_message_does_not_overtake_what_its_peer_wanted_before() -> None:
    with _linked(1, recv_hwm=4) as (xpub, (peer,)):
        for prefix in b"abcde":
            peer.subscribe(b"%c" % prefix)
        assert xpub.recv(timeout=1) == b"\1a"
        peer.send(b"there is no room")
        assert _drained(xpub) == [b"\1b", b"\1c", b"\1d", b"\1e"]
        peer.send(b"now there is")
        assert _drained(xpub) == [b"now there is"]


@pytest.mark.parametrize("options", [{}, {"xpub_verbose": True}, {"xpub_verboser": True}], ids=str)
def test_a_subscription_that_waits_for_room_is_undone_by_any_peer(options: dict[str, bool]) -> None:
    """Another peer's repetition of it, which could be delivered at once, would be all that the user receives."""
    with _linked(2, recv_hwm=1, **options) as (xpub, (lags, other)):
        lags.subscribe(b"x")
        for peer in (lags, other):
            peer.subscribe(b"p")
        for peer in (lags, other):
            peer.unsubscribe(b"p")
        received = _drained(xpub)
        assert received[0] == b"\1x"
        assert received.count(b"\1p") == received.count(b"\0p")


@pytest.mark.slow
def test_a_peer_that_toggles_for_ever_costs_no_more_each_time() -> None:
    """A change that was queued, undone and queued again is queued once."""

    def toggle(prefixes: list[bytes]) -> float:
        begun = time.thread_time()
        for prefix in prefixes:
            peer.unsubscribe(prefix)
            peer.subscribe(prefix)
        return (time.thread_time() - begun) / len(prefixes)

    with _linked(1, recv_hwm=1) as (xpub, (peer,)):
        many = [b"%d" % number for number in range(60_000)]
        for prefix in many:
            peer.subscribe(prefix)
        usual = toggle(many[1:])
        assert toggle([many[7]] * 3000) < 10 * usual
        assert len(_drained(xpub)) == len(many)


@examples(50)
@given(
    hwm=st.integers(1, 4),
    program=st.lists(
        st.one_of(st.tuples(st.sampled_from(["want", "leave", "send"]), st.sampled_from(b"abcd")), st.none())
    ),
)
def test_what_one_peer_sends_keeps_its_order_where_its_user_lags(hwm: int, program: list) -> None:
    with _linked(1, recv_hwm=hwm) as (xpub, (peer,)):
        sent, received, held = [], [], set()
        for number, step in enumerate(program):
            if step is None:
                with contextlib.suppress(omq.ReceiveTimeout):
                    received.append(xpub.recv(timeout=0))
                continue
            what, prefix = step
            if what == "send":
                sent.append(b"sent %d" % number)
                peer.send(sent[-1])
            elif (what == "want") != (prefix in held):
                held ^= {prefix}
                sent.append(b"%c%c" % (what == "want", prefix))
                (peer.subscribe if what == "want" else peer.unsubscribe)(b"%c" % prefix)
        received += _drained(xpub)
        rest = iter(sent)
        assert all(word in rest for word in received), (sent, received)
        known: set[int] = set()
        for word in received:
            if word[0] <= 1:
                known ^= {word[1]}
        assert known == held


@pytest.mark.parametrize("hwm", [0, 3])
@pytest.mark.parametrize("verbose", [False, True])
@examples(40)
@given(program=st.lists(st.one_of(STEPS, st.just("take")), max_size=60))
def test_the_order_of_each_peer_and_of_each_prefix(hwm: int, verbose: bool, program: list) -> None:
    """Until it is undone a prefix is wanted: the user's messages about it make sense in that order only."""
    with _linked(3, recv_hwm=hwm, xpub_verboser=verbose) as (xpub, peers):
        sent: list[list[bytes]] = [[], [], []]
        holders: dict[int, set[int]] = {prefix: set() for prefix in b"abc"}
        received = []
        for number, step in enumerate(program):
            if step == "take":
                with contextlib.suppress(omq.ReceiveTimeout):
                    received.append(xpub.recv(timeout=0))
                continue
            peer, what, prefix = step
            if what == "want":
                if peer not in holders[prefix]:
                    peers[peer].subscribe(b"%c" % prefix)
                holders[prefix].add(peer)
            elif what == "leave":
                if peer in holders[prefix]:
                    peers[peer].unsubscribe(b"%c" % prefix)
                holders[prefix].discard(peer)
            else:
                body = b"%d-%d" % (peer, number)
                sent[peer].append(body.ljust(5000) if what == "send long" else body)
                peers[peer].send(sent[peer][-1])
        received += _drained(xpub)
        for peer, bodies in enumerate(sent):
            got = [body for body in received if body.startswith(b"%d-" % peer)]
            assert got == (bodies if hwm == 0 else [body for body in bodies if body in got])
        for prefix in b"abc":
            words = [body[0] for body in received if body[1:] == b"%c" % prefix and body[0] <= 1]
            if not verbose:
                assert words == [1, 0] * (len(words) // 2) + [1] * (len(words) % 2)
            if not (verbose and hwm):
                assert bool(words and words[-1]) == bool(holders[prefix]) or (verbose and holders[prefix])
