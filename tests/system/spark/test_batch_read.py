"""`spark.read.format("omq")` against a real Spark."""

import itertools
from hashlib import sha256
from typing import Any

import pytest

import omq
from tests.system.spark.conftest import Feeder

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(120)]


def read(spark: Any, **options: Any) -> Any:
    return spark.read.format("omq").options(**options).load()


def test_the_shortest_read(spark: Any, feed: Feeder) -> None:
    url = feed.push([b"%d" % n for n in range(1000)])
    frame = spark.read.format("omq").option("socket", "PULL").option("connect", url).option("maxRows", 1000).load()
    assert frame.dtypes == [
        ("value", "binary"),
        ("endpoint", "string"),
        ("timestamp", "timestamp"),
        ("sequence", "bigint"),
    ]
    rows = frame.collect()
    assert [bytes(row.value) for row in rows] == [b"%d" % n for n in range(1000)]
    assert [row.sequence for row in rows] == list(range(1000))
    assert {row.endpoint for row in rows} == {url}


def test_a_batch_without_a_bound_is_an_error(spark: Any) -> None:
    with pytest.raises(Exception, match="a batch needs a limit: option 'maxRows', 'maxBytes' or 'maxSeconds'"):
        read(spark, socket="PULL", connect="tcp://127.0.0.1:1").collect()


def test_an_unknown_option_is_an_error_that_lists_the_known(spark: Any) -> None:
    with pytest.raises(
        Exception,
        match=r"unknown option 'maxrow'; did you mean 'maxRows'. known options: socket, bind, .*maxRows.*recv_hwm",
    ):
        read(spark, socket="PULL", connect="tcp://127.0.0.1:1", maxRow=5)


def test_several_endpoints_are_a_partition_each(spark: Any, feed: Feeder) -> None:
    urls = [feed.push([b"%d" % n] * 10) for n in range(3)]
    frame = read(spark, socket="PULL", connect=", ".join(urls), maxRows=10)
    rows = frame.select("value", "endpoint").collect()
    assert sorted((bytes(row.value), row.endpoint) for row in rows) == sorted(
        (b"%d" % n, url) for n, url in enumerate(urls) for _ in range(10)
    )


@pytest.mark.slow
def test_partitions_are_connections_to_one_endpoint(spark: Any, feed: Feeder) -> None:
    push = feed.open(omq.PUSH, bind="tcp://127.0.0.1:*")

    def job() -> None:
        push.wait_connected(2, timeout=60)
        push.send_many([b"x"] * 40)

    feed.run(job)
    frame = read(spark, socket="PULL", connect=push.endpoints[0], partitions=2, maxRows=20)
    assert frame.rdd.getNumPartitions() == 2
    assert frame.count() == 40


def test_parts_and_empty_and_large_payloads(spark: Any, feed: Feeder) -> None:
    large = bytes(range(256)) * (1 << 17)  # 32 MiB
    messages = [[b""], [large], [b"a", b"", b"c"], [b"last"]]
    url = feed.push(messages)
    frame = read(spark, socket="PULL", connect=url, columns="value,parts", maxRows=4)
    assert frame.dtypes == [("value", "binary"), ("parts", "array<binary>")]
    rows = frame.selectExpr("sha2(value, 256) AS value", "transform(parts, part -> sha2(part, 256)) AS parts").collect()
    assert [row.parts for row in rows] == [[sha256(part).hexdigest() for part in parts] for parts in messages]
    assert [row.value for row in rows] == [*(row.parts[0] for row in rows[:2]), None, rows[3].parts[0]]


def test_several_parts_without_a_column_for_them_fail_the_read(spark: Any, feed: Feeder) -> None:
    url = feed.push([[b"a", b"b"]])
    with pytest.raises(Exception, match=r"a message of 2 parts arrived from .*'columns'"):
        read(spark, socket="PULL", connect=url, maxRows=1).collect()


def test_topics_of_a_subscription(spark: Any, feed: Feeder) -> None:
    pub = feed.open(omq.PUB, bind="tcp://127.0.0.1:*", xpub_nodrop=True)

    def job() -> None:
        pub.wait_subscribed(n=2, timeout=60)
        for message in ([b"a", b"1"], [b"ab2"], [b"c", b"3"], [b"d", b"4"]):
            pub.send_multipart(message)

    feed.run(job)
    frame = read(spark, socket="SUB", connect=pub.endpoints[0], subscribe="a,c", maxRows=3)
    assert frame.columns == ["value", "topic", "endpoint", "timestamp", "sequence"]
    assert [(row.topic and bytes(row.topic), bytes(row.value)) for row in frame.collect()] == [
        (b"a", b"1"),
        (None, b"ab2"),
        (b"c", b"3"),
    ]


def test_a_bound_endpoint(spark: Any, feed: Feeder, tmp_path: Any) -> None:
    url = f"ipc://{tmp_path}/s"
    push = feed.open(omq.PUSH, connect=url)
    feed.run(lambda: push.send_many([b"x"] * 50))
    assert read(spark, socket="pull", BIND=url, MAXROWS=50, recv_hwm=10).count() == 50


@pytest.mark.slow
def test_bounds_in_bytes_and_seconds(spark: Any, feed: Feeder) -> None:
    url = feed.push([b"x" * 1000] * 100)
    assert read(spark, socket="PULL", connect=url, maxBytes=10_500, maxSeconds=30).count() == 10
    url = feed.push([b"x" * 1000])
    assert read(spark, socket="PULL", connect=url, maxBytes=10, maxSeconds=30).count() == 1
    url = feed.push([b"x"] * 7)
    assert read(spark, socket="PULL", connect=url, maxSeconds=2).count() == 7


def test_a_schema_of_the_users_own(spark: Any, feed: Feeder) -> None:
    url = feed.push([b"x"] * 3)
    reader = spark.read.format("omq").option("socket", "PULL").option("connect", url).option("maxRows", 3)
    assert reader.schema("sequence bigint, value binary").load().collect()[2].sequence == 2
    with pytest.raises(Exception, match="the schema does not match"):
        reader.schema("value string").load().collect()


def test_no_message_is_read_twice_and_none_after_the_bound(spark: Any, feed: Feeder) -> None:
    push = feed.open(omq.PUSH, bind="tcp://127.0.0.1:*")
    url = push.endpoints[0]

    def job() -> None:
        for n in itertools.count():
            push.send(b"%d" % n)

    feed.run(job)
    first = [int(row.value) for row in read(spark, socket="PULL", connect=url, maxRows=10).collect()]
    second = [int(row.value) for row in read(spark, socket="PULL", connect=url, maxRows=10).collect()]
    assert first == list(range(10))
    assert len(second) == 10
    assert min(second) > max(first)


def test_the_options_of_a_socket_reach_it(spark: Any, feed: Feeder) -> None:
    pub = feed.open(omq.PUB, bind="tcp://127.0.0.1:*", xpub_nodrop=True)

    def job() -> None:
        pub.wait_subscribed(timeout=60)
        events = pub.monitor()
        pub.send(b"a" * 200)  # ends the connection of a reader that takes no more than 100 bytes
        while events.recv(timeout=60).kind is not omq.EventKind.DISCONNECTED:
            pass
        pub.wait_subscribed(timeout=60)
        pub.send_many([b"a%d" % n for n in range(5)])

    feed.run(job)
    options = {
        "recv_hwm": "3",
        "identity": "reader",
        "reconnect_interval": "0.05,0.1",
        "reconnect_stop": "handshake failed",
        "connect_timeout": "5",
        "handshake_timeout": "none",
        "heartbeat_interval": "5",
        "heartbeat_timeout": "5",
        "heartbeat_ttl": "10",
        "max_message_size": "100",
        "max_parts": "2",
        "tcp_keepalive": "1",
        "tcp_keepalive_count": "3",
        "tcp_keepalive_idle": "20",
        "tcp_keepalive_interval": "20",
        "tcp_user_timeout": "9",
        "send_buffer": "65536",
        "recv_buffer": "65536",
        "ipv6": "false",
        "tos": "16",
        "busy_poll": "adaptive",
    }
    frame = read(spark, socket="SUB", connect=pub.endpoints[0], subscribe="a", maxRows=5, maxSeconds=60, **options)
    assert [bytes(row.value) for row in frame.collect()] == [b"a%d" % n for n in range(5)]


def test_keys_by_file_path_on_both_sides(spark: Any, feed: Feeder, tmp_path: Any) -> None:
    ours, theirs = omq.curve_keypair(), omq.curve_keypair()
    paths = {}
    for name, key in {"ours": ours[1], "theirs": theirs[0]}.items():
        paths[name] = str(tmp_path / name)
        (tmp_path / name).write_bytes(key + b"\n")
    # As a client of a server that is here,
    guard = omq.CurveServer(theirs[1], {ours[0]})
    keys = {"curveServerKeyFile": paths["theirs"], "curveSecretKeyFile": paths["ours"]}
    url = feed.push([b"sealed"] * 10, security=guard)
    assert read(spark, socket="PULL", connect=url, maxRows=10, **keys).count() == 10
    # without keys no peer is let in,
    url = feed.push([b"sealed"] * 10, security=guard)
    assert read(spark, socket="PULL", connect=url, maxSeconds=1).count() == 0
    # and as a server, for clients that are known.
    endpoint = f"ipc://{tmp_path}/sealed"
    for secret in (omq.curve_keypair()[1], theirs[1]):
        client = feed.open(omq.PUSH, connect=endpoint, security=omq.CurveClient(ours[0], secret_key=secret))
        feed.run(lambda client=client, secret=secret: client.send_many([b"1" if secret == theirs[1] else b"0"] * 5))
    keys = {"curveSecretKeyFile": paths["ours"], "curveAuthorizedKeysFile": paths["theirs"]}
    frame = read(spark, socket="PULL", bind=endpoint, maxRows=5, maxSeconds=60, columns="value", **keys)
    assert [bytes(row.value) for row in frame.collect()] == [b"1"] * 5
