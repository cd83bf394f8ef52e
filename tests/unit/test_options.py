"""Options: every default fits, every bad value is refused by name, and nothing is accepted and ignored."""

import dataclasses
import inspect
import math
import ssl
from ipaddress import ip_address, ip_network
from typing import Any

import pytest

from omq.errors import OptionError
from omq.options import Options
from omq.security import PlainClient, PlainServer
from omq.types import SocketType

FIELDS = [f.name for f in dataclasses.fields(Options)]

HUGE = 2**31
NOT_SECONDS: list[Any] = [-1, -0.001, math.nan, math.inf, 10**400, "1", b"1", True, [1]]
NOT_POSITIVE: list[Any] = [*NOT_SECONDS, 0, 0.0]
NOT_WHOLE: list[Any] = [-2, 1.0, "1", True, False, [1], b"1"]
NOT_FLAG: list[Any] = [0, 1, None, "yes", b"", 1.0]
NOT_OCTETS: list[Any] = ["text", 1, bytearray(b"x"), [b"x"]]

#: For each option a socket type that it fits, values that it takes, and values that it refuses.
CASES: dict[str, tuple[str, list[Any], list[Any]]] = {
    "send_hwm": ("PUSH", [0, 1, HUGE - 1], [*NOT_WHOLE, -1, HUGE, None]),
    "recv_hwm": ("PULL", [0, 1, HUGE - 1], [*NOT_WHOLE, -1, HUGE, None]),
    "send_timeout": ("PUSH", [None, 0, 0.5, 3600], NOT_SECONDS),
    "recv_timeout": ("PULL", [None, 0, 0.5, 3600], NOT_SECONDS),
    "linger": ("PUSH", [None, 0, 0.5, 3600], NOT_SECONDS),
    "error_linger": ("PUSH", [None, 0, 0.5, 3600], NOT_SECONDS),
    "metadata": (
        "PUSH",
        [(), ((b"X-a", b"1"), (b"x-b.c", b""))],
        [
            None,
            1,
            b"X-a",
            ((b"a", b"1"),),
            ((b"X-", b"1"),),
            (("a", "1"),),
            (("X-\u00fc", "1"),),
            (("X-a", 1),),
            ((b"X-a", b"x" * 4096),),
        ],
    ),
    "identity": (
        "DEALER",
        [b"", b"a", b"x" * 255, b"a\0", b"\0a"],
        ["a", None, b"x" * 256, bytearray(b"a"), 1],
    ),
    "reconnect_interval": (
        "PUSH",
        [None, 0.1, 1, (0.1, 5.0), (1, 1)],
        [*NOT_POSITIVE, (5.0, 0.1), (0.1,), (0.1, 1.0, 2.0), (), (0.1, None), (None, 1.0), (0, 1)],
    ),
    "reconnect_stop": (
        "PUSH",
        [frozenset(), {"refused"}, {"handshake failed", "after disconnect"}],
        [None, 1, "never", ("refused", "x"), b"refused", (1,)],
    ),
    "connect_timeout": ("PUSH", [None, 0.5, 30], NOT_POSITIVE),
    "handshake_timeout": ("PUSH", [None, 0.5, 30], NOT_POSITIVE),
    "heartbeat_interval": ("PUSH", [None, 0.05, 30], NOT_POSITIVE),
    "heartbeat_timeout": ("PUSH", [None, 0.05, 30], NOT_POSITIVE),
    "heartbeat_ttl": ("PUSH", [None, 0, 0.1, 0.3, 6553.5], [*NOT_SECONDS, 0.09, 6553.6]),
    "max_handshakes": ("PULL", [None, 1, HUGE - 1], [*NOT_WHOLE, -1, 0, HUGE]),
    "max_subscriptions": ("XPUB", [None, 1, HUGE - 1], [*NOT_WHOLE, -1, 0, HUGE]),
    "max_connections": ("PULL", [None, 1, HUGE - 1], [*NOT_WHOLE, -1, 0, HUGE]),
    "max_message_size": ("PULL", [None, 0, 1, 2**63 - 1], [*NOT_WHOLE, -1, 2**63]),
    "max_parts": ("PULL", [None, 1, HUGE - 1], [*NOT_WHOLE, -1, 0, HUGE]),
    "conflate": ("PULL", [True, False], NOT_FLAG),
    "router_mandatory": ("ROUTER", [True, False], NOT_FLAG),
    "router_handover": ("ROUTER", [True, False], NOT_FLAG),
    "router_rename": ("ROUTER", [True, False], NOT_FLAG),
    "peer_identity": ("ROUTER", [b"", b"a", b"i" * 255], [b"i" * 256, "a", None, 1]),
    "stream_notify": ("STREAM", [True, False], NOT_FLAG),
    "probe_router": ("DEALER", [True, False], NOT_FLAG),
    "router_notify": (
        "ROUTER",
        [frozenset(), {"connect"}, {"connect", "disconnect"}],
        [None, 1, "never", ("connect", "x"), b"connect", (1,)],
    ),
    "hello_message": (
        "DEALER",
        [None, (b"",), (b"a", b"b")],
        ["text", 1, [], (), bytearray(b"x"), [b"a", "b"], {b"a"}, [bytearray()]],
    ),
    "disconnect_message": (
        "ROUTER",
        [None, (b"",), (b"a", b"b")],
        ["text", 1, [], (), bytearray(b"x"), [b"a", "b"], {b"a"}, [bytearray()]],
    ),
    "hiccup_message": (
        "DEALER",
        [None, (b"",), (b"a", b"b")],
        ["text", 1, [], (), bytearray(b"x"), [b"a", "b"], {b"a"}, [bytearray()]],
    ),
    "req_relaxed": ("REQ", [True, False], NOT_FLAG),
    "req_correlate": ("REQ", [True, False], NOT_FLAG),
    "xpub_verbose": ("XPUB", [True, False], NOT_FLAG),
    "xpub_verboser": ("XPUB", [True, False], NOT_FLAG),
    "xpub_manual": ("XPUB", [True, False], NOT_FLAG),
    "xpub_nodrop": ("PUB", [True, False], NOT_FLAG),
    "xpub_welcome_message": ("XPUB", [None, b"", b"welcome"], NOT_OCTETS),
    "only_first_subscribe": ("XPUB", [True, False], NOT_FLAG),
    "xpub_manual_last_value": ("XPUB", [True, False], NOT_FLAG),
    "xsub_verbose_unsubscribe": ("XSUB", [True, False], NOT_FLAG),
    "invert_matching": ("SUB", [True, False], NOT_FLAG),
    "subscribe": ("SUB", [b"", b"a", (b"a", b"b"), ()], ["a", ("a",), None, 1, (b"a", "b"), (1,)]),
    "join": ("DISH", [(), b"", b"a", (b"a", b"b"), b"g" * 255], [None, 1, "g" * 256, b"a\0", ("a", b"a"), (1,)]),
    "immediate": ("PUSH", [True, False], NOT_FLAG),
    "tcp_keepalive": ("PUSH", [-1, 0, 1], [*NOT_WHOLE, 2, None]),
    "tcp_keepalive_count": ("PUSH", [-1, 1, 127], [*NOT_WHOLE, 0, 128, None]),
    "tcp_keepalive_idle": ("PUSH", [-1, 1, 32767], [*NOT_WHOLE, 0, 32768, None]),
    "tcp_keepalive_interval": ("PUSH", [-1, 1, 32767], [*NOT_WHOLE, 0, 32768, None]),
    "tcp_user_timeout": ("PUSH", [None, 0.001, 30], [*NOT_POSITIVE, 2147484]),
    "send_buffer": ("PUSH", [None, 1, HUGE - 1], [*NOT_WHOLE, -1, 0, HUGE]),
    "recv_buffer": ("PULL", [None, 1, HUGE - 1], [*NOT_WHOLE, -1, 0, HUGE]),
    "backlog": ("PUSH", [1, 100, HUGE - 1], [*NOT_WHOLE, -1, 0, HUGE, None]),
    "ipv6": ("PUSH", [True, False], NOT_FLAG),
    "busy_poll": ("PULL", [0, 1e-5, 2.0, "adaptive"], [-1, math.inf, None, True, "always", b"adaptive"]),
    "priority": ("PUSH", [0, 6, HUGE - 1], [*NOT_WHOLE, -1, HUGE, None]),
    "tos": ("PUSH", [0, 255], [*NOT_WHOLE, -1, 256, None]),
    "multicast_hops": ("RADIO", [1, 255], [*NOT_WHOLE, 0, 256, None]),
    "multicast_loop": ("RADIO", [True, False], NOT_FLAG),
    "security": ("PUSH", [None, PlainClient("u", "p"), PlainServer({})], ["secret", b"secret", ("u", "p"), 1]),
    "zap_domain": ("PULL", ["", "global", "d" * 255], [None, b"global", "d" * 256, "ü", 1]),
    "zap_enforce_domain": ("PULL", [True, False], NOT_FLAG),
    "use_fd": ("PULL", [None, 0, 3, HUGE - 1], [*NOT_WHOLE, -1, HUGE]),
    "accept_filter": (
        "PULL",
        [None, (ip_network("10.0.0.0/8"),), (ip_network("::1/128"), ip_network("127.0.0.1/32"))],
        ["", "x", "10.0.0.0/33", "1.2.3", "::1/129", "localhost", b"::1", 1, (), [1], ["10.0.0.0/8", ""], True],
    ),
    **{
        f"accept_{one}s": (
            "PULL",
            [None, frozenset({1}), frozenset({1, 7})],
            [-1, 2**32, True, 1.0, "1", b"1", (), [], {1: 1}, [True], ["1"], [1, -1]],
        )
        for one in ("uid", "gid", "pid")
    },
    "tls": ("PULL", [None, ssl.create_default_context()], ["", 1, True, ssl, ssl.SSLContext]),
    "socks_proxy": (
        "PUSH",
        [None, "127.0.0.1:1080", "proxy.example:1", "[::1]:65535"],
        ["", "host", "host:", ":1", "host:0", "host:65536", "::1:1080", "[x]:1", "socks5://host:1", b"h:1", 1, "h:1\n"],
    ),
    "socks_username": ("PUSH", [None, "u", "ü", "x" * 255], ["", "x" * 256, "ü" * 128, "\ud800", b"u", 1]),
    "socks_password": ("PUSH", [None, "", "p", "x" * 255], ["x" * 256, "ü" * 128, "\ud800", b"u", 1]),
    "bind_device": ("PUSH", [None, "lo", "x" * 15], ["", "x" * 16, "ü" * 8, b"lo", 1]),
}


CONFLATING = "PULL PUSH SUB PUB DEALER"
FITS = {
    "max_subscriptions": "PUB XPUB RADIO",
    "join": "DISH",
    "multicast_hops": "RADIO",
    "multicast_loop": "RADIO",
    "conflate": CONFLATING,
    "router_mandatory": "ROUTER",
    "router_rename": "ROUTER",
    "router_handover": "ROUTER",
    "probe_router": "REQ DEALER ROUTER",
    "router_notify": "ROUTER",
    "hello_message": "DEALER ROUTER SERVER CLIENT PEER",
    "disconnect_message": "ROUTER SERVER PEER",
    "hiccup_message": "DEALER CLIENT PEER",
    "req_relaxed": "REQ",
    "req_correlate": "REQ",
    "xpub_verbose": "XPUB",
    "xpub_verboser": "XPUB",
    "xpub_manual": "XPUB",
    "xpub_nodrop": "PUB XPUB",
    "xpub_manual_last_value": "XPUB",
    "xsub_verbose_unsubscribe": "XSUB",
    "xpub_welcome_message": "XPUB",
    "only_first_subscribe": "XPUB XSUB",
    "invert_matching": "PUB XPUB SUB XSUB",
    "subscribe": "SUB XSUB",
    "peer_identity": "ROUTER STREAM",
    "stream_notify": "STREAM",
}

#: The options that have to do with ZMTP: all types but STREAM take them.
ZMTP = frozenset(
    (
        *("identity", "metadata", "max_message_size", "max_parts", "handshake_timeout", "max_handshakes"),
        *("heartbeat_interval", "heartbeat_timeout", "heartbeat_ttl", "security", "zap_domain", "zap_enforce_domain"),
    )
)


def parse(kind: str, **given: Any) -> Options:
    return Options.parse(SocketType(kind), given)


def test_every_option_has_cases_here() -> None:
    assert set(FIELDS) <= set(CASES), "add good and bad values to CASES"


@pytest.mark.parametrize("name", CASES)
def test_good_values_and_the_default_are_taken(name: str) -> None:
    kind, values, _ = CASES[name]
    for value in (*values, getattr(Options(), name)):
        taken = getattr(parse(kind, **{name: value}), name)
        expected = (value,) if name in ("subscribe", "join") and isinstance(value, bytes) else value
        assert taken == expected, f"{name}={value!r}"


@pytest.mark.parametrize("name", CASES)
def test_bad_values_are_refused_by_option_and_value(name: str) -> None:
    kind, _, values = CASES[name]
    for value in values:
        with pytest.raises(OptionError) as caught:
            parse(kind, **{name: value})
        # What was meant to be a password or a key is not repeated.
        shown = f"<{type(value).__name__}>" if name in ("security", "socks_password") else repr(value)
        assert f"{name}={shown}:" in str(caught.value)
        assert "must be " in str(caught.value)


@pytest.mark.parametrize("name", CASES)
def test_an_option_is_taken_by_exactly_the_types_that_it_fits(name: str) -> None:
    value = CASES[name][1][0]
    everything = [kind.value for kind in SocketType if kind is not SocketType.STREAM or name not in ZMTP]
    fitting = FITS[name].split() if name in FITS else everything
    for kind in SocketType:
        if kind.value in fitting:
            parse(kind.value, **{name: value})
        else:
            with pytest.raises(OptionError) as caught:
                parse(kind.value, **{name: value})
            assert name in str(caught.value)
            assert kind.value in str(caught.value)
            if name in ZMTP:
                assert "ZMTP, which that type does not speak" in str(caught.value)
            else:
                assert all(other in str(caught.value) for other in fitting)


def test_an_unknown_option_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(OptionError, match=r"'send_hvm'.*did you mean 'send_hwm'"):
        parse("PUSH", send_hvm=5)


def test_an_option_like_no_other_is_refused_with_the_list() -> None:
    with pytest.raises(OptionError, match=r"'qqqqqq'.*backlog.*send_hwm"):
        parse("PUSH", qqqqqq=5)


def test_seconds_become_floats() -> None:
    options = parse("PUSH", send_timeout=1, reconnect_interval=(1, 2), handshake_timeout=3)
    assert [type(options.send_timeout), type(options.handshake_timeout)] == [float, float]
    assert isinstance(options.reconnect_interval, tuple)
    assert [type(step) for step in options.reconnect_interval] == [float, float]


def test_heartbeat_ttl_is_rounded_down_to_tenths_and_bounded() -> None:
    """Every tenth means itself; what lies between two is the lower one."""
    assert all(parse("PUSH", heartbeat_ttl=tenths / 10).heartbeat_ttl == tenths / 10 for tenths in range(1, 65536, 7))
    assert parse("PUSH", heartbeat_ttl=0.19).heartbeat_ttl == 0.1
    assert parse("PUSH", heartbeat_ttl=6553.49).heartbeat_ttl == 6553.4
    with pytest.raises(OptionError, match=r"heartbeat_ttl=6553.6: must be .*6553.5"):
        parse("PUSH", heartbeat_ttl=6553.6)


def test_a_message_is_bytes_or_its_parts() -> None:
    assert parse("DEALER", hello_message=b"hi").hello_message == (b"hi",)
    assert parse("DEALER", hello_message=[b"h", b"i"]).hello_message == (b"h", b"i")


@pytest.mark.parametrize("kind", ["SERVER", "CLIENT", "PEER"])
def test_a_message_of_a_type_of_one_part_has_one(kind: str) -> None:
    assert parse(kind, hello_message=[b"hi"]).hello_message == (b"hi",)
    wanted = rf"option hello_message=\[b'h', b'i'\]: messages of a {kind} socket have one part"
    with pytest.raises(OptionError, match=wanted):
        parse(kind, hello_message=[b"h", b"i"])


def test_metadata_takes_text_and_bytes() -> None:
    pairs = ((b"X-a", "\u00fc".encode()), (b"X-b", b"\xff"))
    assert parse("PUSH", metadata={"X-a": "\u00fc", b"X-b": b"\xff"}).metadata == pairs


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("affinity", "one I/O thread"),
        ("rate", "PGM"),
        ("multicast_maxtpdu", "PGM"),
        ("vmci_buffer_size", "VMCI"),
        ("norm_mode", "NORM"),
        ("gssapi_plaintext", "GSSAPI"),
        ("in_batch_size", "batches"),
        ("out_batch_size", "batches"),
        ("ipv4only", "ipv6=True"),
        ("router_raw", "STREAM"),
        ("loopback_fastpath", "Windows"),
    ],
)
def test_what_means_nothing_here_is_refused_with_its_reason(name: str, why: str) -> None:
    with pytest.raises(OptionError, match=f"option '{name}' of libzmq does not exist in omq: .*{why}"):
        parse("ROUTER", **{name: 1})


@pytest.mark.parametrize(
    ("name", "ours"),
    [("tcp_accept_filter", "accept_filter"), ("ipc_filter_pid", "accept_pids"), ("hello_msg", "hello_message")],
)
def test_an_option_of_libzmq_with_another_name_is_refused_with_ours(name: str, ours: str) -> None:
    assert ours in FIELDS
    with pytest.raises(OptionError, match=f"unknown option '{name}'.* is '{ours}' here"):
        parse("ROUTER", **{name: 1})


def test_router_notify_takes_one_word_or_several_or_a_flag_for_both() -> None:
    assert parse("ROUTER", router_notify="connect").router_notify == frozenset({"connect"})
    assert parse("ROUTER", router_notify=True).router_notify == frozenset({"connect", "disconnect"})
    assert parse("ROUTER", router_notify=False).router_notify == frozenset()


@pytest.mark.parametrize("given", ["refused", ["refused"], iter(["refused", "refused"])], ids=type)
def test_reconnect_stop_takes_one_reason_or_several(given: Any) -> None:
    assert parse("PUSH", reconnect_stop=given).reconnect_stop == frozenset({"refused"})


def test_accept_filter_takes_text_and_a_host_in_its_network_means_the_network() -> None:
    networks = (ip_network("10.0.0.0/8"), ip_network("::1/128"))
    assert parse("PULL", accept_filter=["10.1.2.3/8", "::1", "10.0.0.0/8"]).accept_filter == networks
    assert parse("PULL", accept_filter="127.0.0.1").accept_filter == (ip_network("127.0.0.1/32"),)
    assert parse("PULL", accept_filter=iter(["::/0"])).accept_filter == (ip_network("::/0"),)
    assert parse("PULL", accept_filter=ip_address("127.0.0.1")).accept_filter == (ip_network("127.0.0.1/32"),)
    assert parse("PULL", accept_filter=[ip_address("::1")]).accept_filter == (ip_network("::1/128"),)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("::ffff:127.0.0.0/104", "127.0.0.0/8"),
        ("::ffff:127.1.2.3/104", "127.0.0.0/8"),
        ("::ffff:127.0.0.1", "127.0.0.1/32"),
        (ip_address("::ffff:127.0.0.1"), "127.0.0.1/32"),
        (ip_network("::ffff:0:0/96"), "0.0.0.0/0"),
        ("::ffff:0:0/80", "::/80"),
        ("::127.0.0.1", "::7f00:1/128"),
        ("::/0", "::/0"),
    ],
    ids=str,
)
def test_accept_filter_keeps_an_ipv4_mapped_network_as_that_of_ipv4(given: Any, kept: str) -> None:
    assert parse("PULL", accept_filter=given).accept_filter == (ip_network(kept),)
    assert parse("PULL", accept_filter=[given, kept]).accept_filter == (ip_network(kept),)


@pytest.mark.parametrize("name", ["accept_uids", "accept_gids", "accept_pids"])
def test_ids_are_one_or_several(name: str) -> None:
    for given in (7, [7], iter([7, 7]), {7}):
        assert getattr(parse("PULL", **{name: given}), name) == frozenset({7})


def test_what_is_not_given_keeps_the_base() -> None:
    base = parse("PUSH", send_hwm=5, linger=1.0)
    changed = Options.parse(SocketType.PUSH, {"linger": 2.0}, base)
    assert (changed.send_hwm, changed.linger) == (5, 2.0)
    assert (base.send_hwm, base.linger) == (5, 1.0)


def test_nothing_given_is_the_defaults() -> None:
    assert parse("PUSH") == Options()


def test_a_set_of_options_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Options().send_hwm = 5  # type: ignore[misc]


def test_subscribe_takes_any_iterable() -> None:
    assert parse("SUB", subscribe=[b"a", b"b"]).subscribe == (b"a", b"b")
    assert parse("SUB", subscribe=iter([b"a"])).subscribe == (b"a",)


def test_every_option_declares_whether_it_is_live() -> None:
    live = {
        "send_hwm",
        "recv_hwm",
        "send_timeout",
        "recv_timeout",
        "linger",
        "error_linger",
        "router_mandatory",
        "router_handover",
        "probe_router",
        "req_relaxed",
        "req_correlate",
        "xpub_verbose",
        "xpub_verboser",
        "xpub_manual",
        "xpub_manual_last_value",
        "xpub_nodrop",
        "xpub_welcome_message",
        "invert_matching",
        "busy_poll",
    }
    assert {name for name in CASES if Options.is_live(name)} == live


def test_every_option_is_documented() -> None:
    documented = f"        {inspect.getdoc(Options) or ''}".replace("\n    ", "\n        ")
    assert [name for name in FIELDS if f"        {name}: " not in documented] == []


def test_the_defaults_are_those_of_libzmq() -> None:
    defaults = Options()
    assert (defaults.send_hwm, defaults.recv_hwm) == (1000, 1000)
    assert (defaults.linger, defaults.send_timeout, defaults.recv_timeout) == (None, None, None)
    assert (defaults.reconnect_interval, defaults.handshake_timeout, defaults.connect_timeout) == (0.1, 30.0, None)
    assert (defaults.heartbeat_interval, defaults.heartbeat_timeout, defaults.max_message_size) == (None, None, None)
    assert (defaults.immediate, defaults.ipv6, defaults.conflate, defaults.identity) == (False, False, False, b"")


def test_the_default_backlog_has_room_for_a_crowd_that_waits_for_max_handshakes() -> None:
    assert Options().backlog == 4096


@pytest.mark.parametrize(
    "name",
    [
        "tcp_accept_filter",
        "ipc_filter_uid",
        "ipc_filter_gid",
        "ipc_filter_pid",
        "metadata",
        "affinity",
        "connect_routing_id",
        "gssapi_server",
    ],
)
def test_what_libzmq_has_and_omq_has_not_is_refused_and_not_ignored(name: str) -> None:
    with pytest.raises(OptionError, match=name):
        parse("ROUTER", **{name: 1})
