"""The messages that a connection gives back of its batch: those of which no byte has left, once, and nothing else."""

import asyncio
import contextlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from omq._core.wire.crypto import CurveCipher, Secret
from omq._core.wire.framing import FrameDecoder, encode_frame
from tests.support.bare_connection import Driven
from tests.unit.core.sample_codecs import Xored

PONG = encode_frame(b"\4PONG", command=True)
SIZES = [0, 1, 255, 256, 4095, 4096, 4097, 9000, 70_000]
PARTS = st.lists(st.sampled_from(SIZES), min_size=1, max_size=4)
MESSAGES = st.lists(st.one_of(st.none(), PARTS), min_size=1, max_size=30)  # None: a command


def cipher(*, as_server: bool) -> CurveCipher:
    one, other = Secret(b"1" * 32), Secret(b"2" * 32)
    key = one.shared(other.public())
    assert key is not None
    return CurveCipher(key, as_server, 0, 0)


def message(number: int, sizes: list[int]) -> list[bytes]:
    return [(b"%d.%d " % (number, part)).ljust(size, b".")[:size] for part, size in enumerate(sizes)]


def held(parts: list[bytes]) -> bytes | tuple[bytes, ...]:
    return parts[0] if len(parts) == 1 else tuple(parts)


def decoded(data: bytes, curve: CurveCipher | None) -> list[bytes | tuple[bytes, ...]]:
    """The messages of a stream, which ends with a whole frame; commands are left out."""
    decoder = FrameDecoder()
    decoder.feed(data)
    found, parts, size = [], [], 0
    while (frame := decoder.next_frame()) is not None:
        flags, body = frame
        size += len(body) + (9 if len(body) > 255 else 2)
        if curve is not None:
            flags, body = curve.open(body)
            flags = {0: 0, 1: 1, 2: 4}[flags]
        if flags & 4:
            continue
        parts.append(body)
        if not flags & 1:
            found.append(held(parts))
            parts = []
    assert size == len(data), "the end is torn"
    assert not parts, "the last message is torn"
    return found


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "curve"])
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(MESSAGES, st.integers(0, 200_000), st.booleans())
def test_what_was_put_is_what_has_left_and_what_comes_back(secure, kinds, taken, late):
    """The peer may have taken anything before: whole messages, the rest of one that has begun, then what comes back."""

    async def play() -> None:
        sent = []
        with Driven() as core:
            other = core.link(buffer=4096, codec=cipher(as_server=False) if secure else None)
            other.setblocking(False)
            peer = core.session.peer
            data = b""
            for number, sizes in enumerate(kinds):
                if sizes is None:
                    peer.control(PONG)
                    continue
                parts = message(number, sizes)
                await core.send_multipart(parts)
                sent.append(held(parts))
            while late and len(data) < taken and peer.unsent_bytes:
                with contextlib.suppress(BlockingIOError):
                    data += other.recv(min(65536, taken - len(data)))
                peer.flush_now()
            back = peer.take_back()
            assert not peer.is_writable
            assert peer.unsent <= 1
            while peer.unsent_bytes:
                with contextlib.suppress(BlockingIOError):
                    data += other.recv(65536)
                peer.flush_now()
            with contextlib.suppress(BlockingIOError):
                while more := other.recv(65536):
                    data += more
            queue = list(core.send_queue.queue)
            assert decoded(data, cipher(as_server=True) if secure else None) + back + queue == sent
            assert peer.messages_out == len(sent) - len(back) - len(queue)

    # The kernel takes some kilobytes at once; what gathers in one turn has not left.
    asyncio.run(play())


@pytest.mark.parametrize("count", [1, 2])
async def test_a_large_payload_comes_back_as_the_object_that_it_was(count):
    with Driven() as core:
        core.link(buffer=4096)
        await core.send(bytes(500_000))
        first = core.session.peer
        large = [bytes([number]) * 100_000 for number in range(count)]
        # The kernel is full; what its batch gets behind that stands there by reference.
        first.send_parts([large[0]])
        if count == 2:
            first.send_parts([large[1]])
        back = first.take_back()
        assert len(back) == count
        assert all(one is other for one, other in zip(back, large, strict=True))


async def test_memory_of_the_caller_comes_back_as_a_copy():
    with Driven() as core:
        core.link(buffer=4096)
        body = bytearray(b"x" * 500_000)
        await core.send(bytes(1))
        await core.send_multipart([b"", memoryview(body), b"end"])
        body[:] = bytes(len(body))
        assert core.session.peer.take_back() in ([], [(b"", b"x" * 500_000, b"end")])


async def test_nothing_comes_back_twice():
    with Driven() as core:
        core.link(buffer=4096)
        await core.send(bytes(100_000))
        peer = core.session.peer
        for number in range(20):
            peer.send_parts([b"%d" % number])
        assert peer.take_back() == [b"%d" % number for number in range(20)]
        assert peer.take_back() == []
        assert peer.unsent == 1


@pytest.mark.parametrize("parts", [[b""], [b"h", b"i"]], ids=len)
async def test_greetings_are_for_one_peer_and_do_not_come_back(parts):
    with Driven() as core:
        core.link(buffer=4096)
        peer = core.session.peer
        peer.send_parts([bytes(500_000)])  # the first message, of which a part leaves
        peer.send_parts(parts)
        assert peer.unsent == 2
        assert peer.take_back() == []
        assert peer.unsent == 1


async def test_what_a_codec_does_not_give_back_is_dropped():
    with Driven() as core:
        core.link(buffer=4096, codec=Xored())
        await core.send(bytes(100_000))
        peer = core.session.peer
        peer.send_parts([b"small"])
        assert peer.take_back() == []


async def test_a_codec_in_python_may_give_back():
    class Open(Xored):
        def reopen_frame(self, frame):
            return self.decode_frame(frame)

    with Driven() as core:
        core.link(buffer=4096, codec=Open())
        await core.send(bytes(100_000))
        peer = core.session.peer
        peer.send_parts([b"small"])
        peer.send_parts([bytes(9000)])
        assert peer.take_back() == [b"small", bytes(9000)]


async def test_the_next_peer_gets_what_the_lost_one_gives_back_first():
    """The kernel reports a closed peer with the first write: nothing is lost or overtaken, and nothing comes twice."""
    with Driven(send_hwm=1000) as core:
        first = core.link()
        first.close()
        for number in range(50):
            await core.send(b"%02d" % number)
        assert len(core.send_queue.queue) == 50
        second = core.link()
        assert await core.read(second, 50 * 4) == b"".join(encode_frame(b"%02d" % number) for number in range(50))
        assert core.send_queue.idle


async def test_a_peer_that_ends_gives_its_share_to_the_others():
    with Driven() as core:
        first, second = core.link(), core.link()
        first.close()
        for number in range(100):
            await core.send(b"%02d" % number)
        got = await core.read(second, 100 * 4)
        assert sorted(decoded(got, None)) == [b"%02d" % number for number in range(100)]
