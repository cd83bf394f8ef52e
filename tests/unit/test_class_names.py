"""A class name stands for one class: only blocking and asyncio twins share one, and public names of two packages."""

from __future__ import annotations

import ast
from collections import defaultdict

from tests.support import sources

pytestmark = sources.in_one_process
TREE = sources.ROOT
#: Modules are named relative to the first of these that they are in.
ROOTS = (TREE / "omq", TREE / "docs" / "examples", TREE)
PLACES = (TREE / "omq", TREE / "bench", TREE / "docs" / "examples")
#: Names that two packages have, each under its own public name or in its own protocol.
SHARED = {
    "Authenticator": "pyzmq's, and the client of ZAP in the engine",
    "Client": "omq.broker.Client, omq.broker.sexp.Client, and the name of the client in every driver of bench.broker",
    "Consumer": "omq.broker.Consumer and omq.pzq.Consumer",
    "Context": "omq.Context, and pyzmq's in omq.zmq",
    "ContextTerminated": "omq.ContextTerminated, and pyzmq's",
    "CurveClient": "omq.CurveClient and its side of the handshake",
    "CurveServer": "omq.CurveServer and its side of the handshake",
    "Delivery": "omq.broker.Delivery and omq.pzq.Delivery",
    "Device": "the device of omq.pzq, and pyzmq's",
    "Error": "ERROR of ZMTP and of the S-expressions",
    "Event": "omq.Event, and pyzmq's numbers of events",
    "Malformed": "omq.goby.Malformed and omq.pzq.Malformed",
    "Message": "omq.Message and the S-expressions' Message",
    "NotLeader": "omq.broker.NotLeader and the error of a replicated store",
    "Ping": "PING of ZMTP and of the S-expressions",
    "PlainClient": "omq.PlainClient and its side of the handshake",
    "PlainServer": "omq.PlainServer and its side of the handshake",
    "Poller": "the pollers of omq.zmq for threads, asyncio and tornado",
    "Server": "omq.broker.Server and the SERVER pattern",
    "Socket": "omq.Socket, and pyzmq's",
    "SocketType": "omq.SocketType, and pyzmq's numbers",
    "Subscribe": "SUBSCRIBE of ZMTP and of the S-expressions",
    "Subscription": "omq.broker.Subscription, omq.broker.sexp.Subscription and omq.goby.Subscription",
}


def modules_of_classes() -> dict[str, set[str]]:
    """Returns the modules that define each class; a module of `omq.asyncio` stands for its blocking twin."""
    found = defaultdict[str, set[str]](set)
    for path, tree in sources.trees().items():
        if any(map(path.is_relative_to, PLACES)):
            root = next(root for root in ROOTS if path.is_relative_to(root))
            for node in sources.definitions(tree):
                if isinstance(node, ast.ClassDef):
                    found[node.name].add(path.relative_to(root).with_suffix("").as_posix())
    return found


def test_a_name_stands_for_one_class() -> None:
    shared = {}
    for name, modules in modules_of_classes().items():
        blocking = {module for module in modules if not module.startswith("asyncio/")}
        if len(blocking) > 1 and name not in SHARED:
            shared[name] = sorted(modules)
    assert not shared


def test_exceptions_are_needed() -> None:
    found = modules_of_classes()
    assert [name for name in SHARED if len(found.get(name, ())) < 2] == []
