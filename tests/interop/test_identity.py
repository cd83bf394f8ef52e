"""Identities and envelopes: how ROUTER, DEALER, REQ and REP of both libraries address each other."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import omq.asyncio as omq
from omq.errors import Timeout, UnroutableError
from tests.interop.conftest import Fresh
from tests.interop.libzmq import Libzmq, endpoint_of
from tests.interop.run_coroutine import on_uvloop
from tests.interop.socket_pairs import joined

IDENTITIES = pytest.mark.parametrize(
    "identity",
    [
        pytest.param(b"x", id="1-byte"),
        pytest.param(b"a worker", id="text"),
        pytest.param(b"\x80\x00\xff\x01", id="binary"),
        pytest.param(bytes(range(1, 256)), id="255-bytes"),
        pytest.param(b"\0", id="zero"),
        pytest.param(b"\0\x12\x34\x56\x78", id="like-ROUTER's-own"),
        pytest.param(bytes(255), id="255-zeros"),
    ],
)
BINDS = pytest.mark.parametrize("binds", [pytest.param(side, id=f"{side}-binds") for side in ("omq", "zmq")])
#: What each type puts between the identity and the body.
DELIMITERS = {"DEALER": [], "REQ": [b""]}
SPEAKERS = pytest.mark.parametrize("kind", list(DELIMITERS))


@IDENTITIES
@BINDS
@SPEAKERS
@on_uvloop
async def test_libzmq_router_sees_omq_identity(
    libzmq: Libzmq, fresh: Fresh, identity: bytes, binds: str, kind: str
) -> None:
    mine = {"identity": identity}
    async with joined(libzmq, fresh("tcp"), kind, "ROUTER", binds=binds, mine=mine) as (ours, router):
        await ours.send(b"hello")
        assert await router.recv_multipart() == [identity, *DELIMITERS[kind], b"hello"]
        await router.send_multipart([identity, *DELIMITERS[kind], b"welcome"])
        assert await ours.recv(timeout=5) == b"welcome"


@IDENTITIES
@BINDS
@SPEAKERS
@on_uvloop
async def test_omq_router_sees_libzmq_identity(
    libzmq: Libzmq, fresh: Fresh, identity: bytes, binds: str, kind: str
) -> None:
    its = {"identity": identity}
    async with joined(libzmq, fresh("tcp"), "ROUTER", kind, binds=binds, its=its) as (router, theirs):
        await theirs.send(b"hello")
        assert await router.recv_multipart(timeout=5) == [identity, *DELIMITERS[kind], b"hello"]
        await router.send_multipart([identity, *DELIMITERS[kind], b"welcome"])
        assert await theirs.recv() == b"welcome"


@BINDS
@on_uvloop
async def test_libzmq_router_names_an_omq_dealer_without_identity(libzmq: Libzmq, fresh: Fresh, binds: str) -> None:
    async with joined(libzmq, fresh("tcp"), "DEALER", "ROUTER", binds=binds) as (dealer, router):
        await dealer.send(b"1")
        name, body = await router.recv_multipart()
        assert (name[:1], len(name), body) == (b"\0", 5, b"1")
        await router.send_multipart([name, b"2"])
        assert await dealer.recv(timeout=5) == b"2"


@on_uvloop
async def test_omq_router_distinguishes_nameless_libzmq_dealers(libzmq: Libzmq, fresh: Fresh) -> None:
    async with omq.ROUTER(bind=fresh("tcp"), linger=0.0) as router:
        dealers = [libzmq.open("DEALER", connect=router.endpoints[0]) for _ in range(3)]
        names: dict[int, bytes] = {}
        for turn in (b"first", b"second"):
            for number, dealer in enumerate(dealers):
                await dealer.send_multipart([turn, b"%d" % number])
                name, seen, index = await router.recv_multipart(timeout=5)
                assert (seen, int(index)) == (turn, number)
                assert names.setdefault(number, name) == name, "a peer keeps its name"
        assert len(set(names.values())) == 3
        assert all(name[:1] == b"\0" for name in names.values()), "RFC 28: ROUTER's own names start with zero"
        for number, name in reversed(names.items()):
            await router.send_multipart([name, b"for %d" % number])
        for number, dealer in enumerate(dealers):
            assert await dealer.recv() == b"for %d" % number


@on_uvloop
async def test_omq_router_addresses_libzmq_dealers_by_identity(libzmq: Libzmq, fresh: Fresh) -> None:
    async with omq.ROUTER(bind=fresh("ipc"), linger=0.0) as router:
        names = [b"dealer %d" % number for number in range(20)]
        dealers = {name: libzmq.open("DEALER", identity=name, connect=router.endpoints[0]) for name in names}
        await router.wait_connected(len(names), timeout=5)
        for name in names:
            await router.send_multipart([name, b"for", name])
        for name, dealer in dealers.items():
            assert await dealer.recv_multipart() == [b"for", name]


@on_uvloop
async def test_unknown_identity(libzmq: Libzmq, fresh: Fresh) -> None:
    its = {"identity": b"here"}
    async with joined(libzmq, fresh("tcp"), "ROUTER", "DEALER", binds="omq", its=its) as (router, dealer):
        await router.wait_connected(timeout=5)
        await router.send_multipart([b"absent", b"dropped"])
        await router.send_multipart([b"here", b"arrives"])
        assert await dealer.recv() == b"arrives"


@on_uvloop
async def test_unknown_identity_with_router_mandatory(libzmq: Libzmq, fresh: Fresh) -> None:
    mine, its = {"router_mandatory": True}, {"identity": b"here"}
    async with joined(libzmq, fresh("tcp"), "ROUTER", "DEALER", binds="omq", mine=mine, its=its) as (
        router,
        dealer,
    ):
        await router.wait_connected(timeout=5)
        with pytest.raises(UnroutableError):
            await router.send_multipart([b"absent", b"refused"])
        await router.send_multipart([b"here", b"arrives"])
        assert await dealer.recv() == b"arrives"


@pytest.mark.parametrize("handover", [False, True], ids=["kept", "handed-over"])
@on_uvloop
async def test_two_libzmq_dealers_with_one_identity(libzmq: Libzmq, fresh: Fresh, handover: bool) -> None:
    async with omq.ROUTER(bind=fresh("tcp"), router_handover=handover, linger=0.0) as router:
        older = libzmq.open("DEALER", identity=b"twin", connect=router.endpoints[0])
        await older.send(b"older")
        assert await router.recv_multipart(timeout=5) == [b"twin", b"older"]
        newer = libzmq.open("DEALER", identity=b"twin", connect=router.endpoints[0])
        await newer.send(b"newer")
        if handover:
            assert await router.recv_multipart(timeout=5) == [b"twin", b"newer"]
        else:
            with pytest.raises(Timeout):
                await router.recv_multipart(timeout=0.2)
        await router.send_multipart([b"twin", b"whose?"])
        assert await (newer if handover else older).recv() == b"whose?"


@pytest.mark.parametrize("handover", [False, True], ids=["kept", "handed-over"])
@on_uvloop
async def test_a_libzmq_dealer_that_chooses_a_name_that_was_made_up(
    libzmq: Libzmq, fresh: Fresh, handover: bool
) -> None:
    async with omq.ROUTER(bind=fresh("tcp"), router_handover=handover, linger=0.0) as router:
        nameless = libzmq.open("DEALER", connect=router.endpoints[0])
        await nameless.send(b"first")
        name, _ = await router.recv_multipart(timeout=5)
        chooser = libzmq.open("DEALER", identity=name, connect=router.endpoints[0])
        await chooser.send(b"second")
        if not handover:
            with pytest.raises(Timeout):
                await router.recv_multipart(timeout=0.2)
            nameless.close(linger=0)
        assert await router.recv_multipart(timeout=5) == [name, b"second"]
        await router.send_multipart([name, b"whose?"])
        assert await chooser.recv() == b"whose?"


@pytest.mark.parametrize("server", ["REP", "PULL", "XPUB"])
@on_uvloop
async def test_an_identity_like_those_that_are_made_up_keeps_no_libzmq_peer_out(
    libzmq: Libzmq, fresh: Fresh, server: str
) -> None:
    kind, options = {"REP": ("REQ", {}), "PULL": ("PUSH", {}), "XPUB": ("SUB", {"subscribe": b"a"})}[server]
    async with getattr(omq, server)(bind=fresh("tcp"), linger=0.0) as ours:
        theirs = libzmq.open(kind, identity=b"\0abc", connect=ours.endpoints[0], **options)
        if kind != "SUB":
            await theirs.send(b"hello")
        assert await ours.recv(timeout=5) == (b"\1a" if kind == "SUB" else b"hello")


@pytest.mark.parametrize("kind", ["DEALER", "ROUTER"])
@on_uvloop
async def test_libzmq_router_is_probed(libzmq: Libzmq, fresh: Fresh, kind: str) -> None:
    mine = {"identity": b"prober", "probe_router": True}
    async with joined(libzmq, fresh("tcp"), kind, "ROUTER", binds="zmq", mine=mine) as (_, router):
        assert await router.recv_multipart() == [b"prober", b""]


@pytest.mark.parametrize("kind", ["DEALER", "ROUTER"])
@on_uvloop
async def test_libzmq_probes_an_omq_router(libzmq: Libzmq, fresh: Fresh, kind: str) -> None:
    its = {"identity": b"prober", "probe_router": 1}
    async with joined(libzmq, fresh("tcp"), "ROUTER", kind, binds="omq", its=its) as (router, _):
        assert await router.recv_multipart(timeout=5) == [b"prober", b""]


@pytest.mark.parametrize(
    "envelope",
    [
        pytest.param([b""], id="delimiter"),
        pytest.param([b"X", b""], id="one-address"),
        pytest.param([b"X", b"Y", b""], id="two-addresses"),
    ],
)
@pytest.mark.parametrize("rep_side", ["omq", "zmq"])
@on_uvloop
async def test_rep_keeps_the_whole_envelope(libzmq: Libzmq, fresh: Fresh, envelope: list[bytes], rep_side: str) -> None:
    kinds = ("REP", "DEALER") if rep_side == "omq" else ("DEALER", "REP")
    async with joined(libzmq, fresh("tcp"), *kinds, binds="omq") as (ours, theirs):
        rep, dealer = (ours, theirs) if rep_side == "omq" else (theirs, ours)
        await dealer.send_multipart([*envelope, b"ask", b"", b"more"])
        assert await rep.recv_multipart() == [b"ask", b"", b"more"]
        await rep.send_multipart([b"answer", b""])
        assert await dealer.recv_multipart() == [*envelope, b"answer", b""]


@on_uvloop
async def test_omq_req_ignores_a_reply_without_delimiter(libzmq: Libzmq, fresh: Fresh) -> None:
    mine = {"identity": b"asker"}
    async with joined(libzmq, fresh("tcp"), "REQ", "ROUTER", binds="zmq", mine=mine) as (req, router):
        await req.send(b"ask")
        assert await router.recv_multipart() == [b"asker", b"", b"ask"]
        await router.send_multipart([b"asker", b"no delimiter"])
        await router.send_multipart([b"asker", b"", b"answer"])
        assert await req.recv(timeout=5) == b"answer"


@pytest.mark.parametrize("req_side", ["omq", "zmq"])
@on_uvloop
async def test_correlated_requests(libzmq: Libzmq, fresh: Fresh, req_side: str) -> None:
    kinds = ("REQ", "REP") if req_side == "omq" else ("REP", "REQ")
    mine = {"req_correlate": True} if req_side == "omq" else {}
    its = {"req_correlate": 1} if req_side == "zmq" else {}
    async with joined(libzmq, fresh("tcp"), *kinds, binds="zmq", mine=mine, its=its) as (ours, theirs):
        req, rep = (ours, theirs) if req_side == "omq" else (theirs, ours)
        for turn in (b"1", b"2", b"3"):
            await req.send(turn)
            assert await rep.recv() == turn
            await rep.send(turn * 2)
            assert await req.recv() == turn * 2


@on_uvloop
async def test_omq_req_drops_replies_with_a_wrong_id(libzmq: Libzmq, fresh: Fresh) -> None:
    mine = {"req_correlate": True}
    async with joined(libzmq, fresh("tcp"), "REQ", "ROUTER", binds="zmq", mine=mine) as (req, router):
        await req.send(b"ask")
        name, request_id, empty, body = await router.recv_multipart()
        assert (len(request_id), empty, body) == (4, b"", b"ask")
        wrong = bytes(octet ^ 0xFF for octet in request_id)
        await router.send_multipart([name, wrong, b"", b"stale"])
        await router.send_multipart([name, request_id, b"", b"answer"])
        assert await req.recv(timeout=5) == b"answer"


@on_uvloop
async def test_requests_are_spread_over_libzmq_servers(libzmq: Libzmq, fresh: Fresh) -> None:
    servers = {name: libzmq.open("REP", bind=fresh("ipc")) for name in (b"a", b"b")}
    endpoints = [endpoint_of(server) for server in servers.values()]

    async def serve(name: bytes, server: Any) -> None:
        while True:
            assert await server.recv() == b"who?"
            await server.send(name)

    tasks = [asyncio.create_task(serve(*one)) for one in servers.items()]
    async with omq.REQ(connect=endpoints, linger=0.0) as req:
        await req.wait_connected(2, timeout=5)
        replies = []
        for _ in range(6):
            await req.send(b"who?")
            replies.append(await req.recv(timeout=5))
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert sorted(replies) == [b"a"] * 3 + [b"b"] * 3
