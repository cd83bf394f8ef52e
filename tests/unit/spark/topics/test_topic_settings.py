"""Options of topics: texts become settings, and errors name the option and its text."""

from pathlib import Path
from typing import Any

import pyarrow  # noqa: F401
import pytest
from pyspark.sql.types import BinaryType, MapType, StringType, StructField, StructType

import omq
from omq.spark.source import OmqDataSource
from omq.spark.topics.settings import TopicSettings
from omq.spark.topics.source import PROVIDER

URL = "tcp://127.0.0.1:1"
TOPIC = {"connect": URL, "topic": "ticks"}
PUBLIC, _ = omq.curve_keypair()


def test_a_topic_is_all_that_is_needed() -> None:
    batch, stream = TopicSettings.parse("read", TOPIC), TopicSettings.parse("readStream", TOPIC)
    assert (batch.topics, batch.pattern, batch.starting_offsets, batch.ending_offsets) == (
        ("ticks",),
        None,
        "earliest",
        "latest",
    )
    assert stream.starting_offsets == "latest"
    assert batch.fail_on_data_loss
    assert TopicSettings.parse("write", TOPIC).delivery == "exactly-once"
    assert TopicSettings.parse("writeStream", {"connect": URL, "checkpointLocation": "/x"}).topics == ()


def test_a_cluster_has_several_endpoints() -> None:
    found = TopicSettings.parse("write", {"connect": "tcp://127.0.0.1:1, tcp://127.0.0.1:2,", "topic": "ticks"})
    assert found.endpoints == ("tcp://127.0.0.1:1", "tcp://127.0.0.1:2")
    assert found.endpoint == "tcp://127.0.0.1:1,tcp://127.0.0.1:2"
    with found.client() as client:
        assert client.endpoint == "tcp://127.0.0.1:1"


def test_values_are_made_of_texts() -> None:
    found = TopicSettings.parse(
        "readStream",
        {
            "CONNECT": URL,
            "topics": "a, b c ,d",
            "startingoffsets": '{"d": 3, "a": 1}',
            "minPartitions": "4",
            "failOnDataLoss": "FALSE",
            "columns": "id,value",
            "batchBytes": "1m",
            "subscription": "job",
            "maxRowsPerTrigger": "10",
            "minRowsPerTrigger": "5",
            "maxBytesPerTrigger": "64k",
            "maxTriggerDelay": "2m",
            "timeout": "1.5",
            "heartbeat_interval": "1.0",
        },
    )
    assert found.topics == ("a", "b c", "d")
    assert found.starting_offsets == (("a", 1), ("d", 3))
    assert (found.min_partitions, found.fail_on_data_loss, found.columns) == (4, False, ("id", "value"))
    assert (found.batch_bytes, found.max_rows, found.min_rows, found.max_bytes) == (1 << 20, 10, 5, 65536)
    assert (found.max_trigger_delay, found.timeout, found.subscription) == (120.0, 1.5, "job")
    assert dict(found.options) == {"heartbeat_interval": 1.0}


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90.0), ("500ms", 0.5), ("30s", 30.0), ("1.5h", 5400.0), (" 15M ", 900.0)]
)
def test_a_delay_has_a_unit(text: str, seconds: float) -> None:
    found = TopicSettings.parse("readStream", {**TOPIC, "minRowsPerTrigger": "1", "maxTriggerDelay": text})
    assert found.max_trigger_delay == seconds


@pytest.mark.parametrize(
    ("use", "given", "error"),
    [
        ("read", {"topic": "t"}, "option 'connect' is missing"),
        ("read", {"connect": URL}, "read takes one of the options 'topic', 'topics' and 'topicPattern'"),
        ("read", {**TOPIC, "topics": "a"}, "takes one of the options"),
        ("read", {"connect": "tcp//h", "topic": "t"}, "option 'connect': "),
        ("read", {"connect": "tcp://a:1,tcp//b:1", "topic": "t"}, "option 'connect': .*tcp//b:1"),
        ("read", {"connect": "tcp://a:1, tcp://a:1", "topic": "t"}, "must be the endpoint of a broker, .* each once"),
        ("read", {"connect": "inproc://x", "topic": "t"}, "option connect='inproc://x': inproc stays within a process"),
        ("read", {"connect": URL, "topic": "a/b"}, "option topic='a/b': "),
        ("read", {"connect": URL, "topics": "a/b"}, "option topics='a/b': "),
        ("read", {"connect": URL, "topics": "a, b/c"}, "option topics='a,b/c': .*'b/c'"),
        ("read", {"connect": URL, "topic": ""}, "option topic='': must be the name of a topic"),
        ("read", {"connect": URL, "topics": " , "}, "option topics=' , ': must be names of topics"),
        ("read", {"connect": URL, "topics": "a,a"}, "option topics='a,a': must be names of topics, .* each once"),
        ("read", {"connect": URL, "topicPattern": "("}, r"option topicPattern='\(': must be a regular expression"),
        ("read", {**TOPIC, "startingOffsets": "latest"}, "option startingOffsets='latest': a batch would be empty"),
        ("read", {**TOPIC, "startingOffsets": "first"}, "option startingOffsets='first': must be earliest, latest"),
        ("read", {**TOPIC, "startingOffsets": '{"t": 0}'}, "must be earliest, latest"),
        ("read", {**TOPIC, "startingOffsets": '{"t": true}'}, "must be earliest, latest"),
        ("read", {**TOPIC, "startingOffsets": "{}"}, "must be earliest, latest"),
        ("read", {**TOPIC, "startingOffsets": "[" * 100_000}, "must be earliest, latest"),
        ("read", {**TOPIC, "startingOffsets": '{"a":' * 100_000}, "must be earliest, latest"),
        ("read", {**TOPIC, "startingOffsets": '{"t": %s}' % ("9" * 5000)}, "must be earliest, latest"),
        ("read", {**TOPIC, "startingOffsets": '{"t": 1, "t": 2}'}, "or an id of each topic or of some, once"),
        ("read", {**TOPIC, "endingOffsets": '{"t": 1, "t": 1}'}, "or an id of each topic, once"),
        ("read", {**TOPIC, "endingOffsets": "earliest"}, "option endingOffsets='earliest': must be latest"),
        ("read", {**TOPIC, "startingOffsets": "earliest", "startingTimestamp": "1"}, "exclude each other.*; set one"),
        ("read", {**TOPIC, "endingOffsets": "latest", "endingTimestamp": "1"}, "exclude each other"),
        ("read", {**TOPIC, "startingTimestamp": "9", "endingTimestamp": "8"}, "startingTimestamp='9' is after ending"),
        ("read", {**TOPIC, "startingTimestamp": "soon"}, "option startingTimestamp='soon': must be milliseconds"),
        ("read", {**TOPIC, "maxRowsPerTrigger": "1"}, "not an option of read: 'maxRowsPerTrigger'"),
        ("readStream", {**TOPIC, "endingOffsets": "latest"}, "not an option of readStream: 'endingOffsets'"),
        ("readStream", {**TOPIC, "maxRowsPerTriger": "1"}, "did you mean 'maxRowsPerTrigger'"),
        ("readStream", {**TOPIC, "maxRowsPerTrigger": "0"}, "option maxRowsPerTrigger='0': must be a whole number"),
        ("readStream", {**TOPIC, "maxTriggerDelay": "5s"}, "option 'maxTriggerDelay' needs 'minRowsPerTrigger'"),
        (
            "readStream",
            {**TOPIC, "minRowsPerTrigger": "1", "maxTriggerDelay": "5 days"},
            "option maxTriggerDelay='5 days': must be seconds above 0, or with a unit",
        ),
        (
            "readStream",
            {**TOPIC, "minRowsPerTrigger": "9", "maxRowsPerTrigger": "8"},
            "minRowsPerTrigger='9' is above maxRowsPerTrigger='8'",
        ),
        ("read", {**TOPIC, "batchBytes": "1025m"}, "option batchBytes='1025m': must be bytes above 0 .*, 1g at most"),
        ("read", {**TOPIC, "minPartitions": "1000001"}, "option minPartitions='1000001': must be .*, 1000000 at most"),
        ("readStream", {**TOPIC, "maxBytesPerTrigger": "4294967297g"}, "must be bytes above 0 .*, 2.62 at most"),
        (
            "readStream",
            {**TOPIC, "subscription": "a/b"},
            "option subscription='a/b': a subscription's name must not contain a slash",
        ),
        ("read", {**TOPIC, "max_message_size": "5"}, "not an option of read: 'max_message_size'"),
        ("readStream", {**TOPIC, "triggerSeconds": "1"}, "unknown option 'triggerSeconds'"),
        ("read", {**TOPIC, "columns": "value,offset"}, "columns='offset': expected one of topic, id"),
        ("read", {**TOPIC, "columns": "value,value"}, "a name is given twice"),
        ("read", {**TOPIC, "bind": URL}, "unknown option 'bind'"),
        ("read", {**TOPIC, "recv_hwm": "5"}, "not an option of read: 'recv_hwm'"),
        ("read", {**TOPIC, "subscribe": "a"}, "'subscribe'"),
        ("write", {**TOPIC, "delivery": "twice"}, "option delivery='twice': must be exactly-once or at-least-once"),
        ("write", {**TOPIC, "delivry": "x"}, "unknown option 'delivry'; did you mean 'delivery'"),
        ("write", {**TOPIC, "startingOffsets": "earliest"}, "not an option of write: 'startingOffsets'"),
        ("write", {"connect": URL, "topics": "t"}, "not an option of write: 'topics'"),
        ("read", {**TOPIC, "curveSecretKeyFile": "f"}, "option 'curveServerKeyFile' is missing"),
        ("read", {**TOPIC, "username": "u"}, "option 'passwordFile' is missing: username needs it"),
        ("read", {**TOPIC, "passwordFile": "f"}, "option 'username' is missing: passwordFile needs it"),
        (
            "read",
            {**TOPIC, "username": "u", "passwordFile": "f", "curveServerKeyFile": "g"},
            "options 'username' and 'curveServerKeyFile' select different security mechanisms; set one of them",
        ),
    ],
)
def test_an_invalid_option_is_named(use: str, given: dict[str, str], error: str) -> None:
    with pytest.raises(omq.OptionError, match=error):
        TopicSettings.parse(use, given)


def test_every_option_that_is_listed_is_taken() -> None:
    for use in ("read", "readStream", "write", "writeStream"):
        own = {"connect", "topic", "startingOffsets", "delivery", "timeout"}
        assert (own - {"startingOffsets" if use.startswith("write") else "delivery"}) <= set(
            TopicSettings.OPTIONS.known(use)
        )
        for name in TopicSettings.OPTIONS.known(use):
            if name.islower() and name not in {"topic", "topics", "connect", "columns", "delivery", "timeout"}:
                value: Any = getattr(omq.Options(), name, None)
                if isinstance(value, bool | int | float):
                    TopicSettings.parse(use, {**TOPIC, name: str(value).lower()})


def test_keys_and_passwords_are_read_where_they_are_needed(tmp_path: Path) -> None:
    public, secret = omq.curve_keypair()
    server, own, word = tmp_path / "server", tmp_path / "own", tmp_path / "word"
    server.write_bytes(public)
    own.write_bytes(secret)
    word.write_text("secret\n")
    given = {**TOPIC, "curveServerKeyFile": str(server), "curveSecretKeyFile": str(own)}
    found = TopicSettings.parse("read", given)
    assert secret.decode() not in repr(found)
    assert type(found.security()) is omq.CurveClient
    plain = TopicSettings.parse("read", {**TOPIC, "username": "u", "passwordFile": str(word)})
    assert type(plain.security()) is omq.PlainClient
    assert TopicSettings.parse("read", TOPIC).security() is None
    missing = TopicSettings.parse("read", {**TOPIC, "username": "u", "passwordFile": str(tmp_path / "nowhere")})
    with pytest.raises(omq.OptionError, match=r"option passwordFile='.*nowhere' cannot be read"):
        missing.security()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"curveServerKeyFile": bytes(range(128, 160))}, "curveServerKeyFile=.*: the file is not text in UTF-8"),
        (
            {"curveServerKeyFile": b"short"},
            "curveServerKeyFile=.*: server_key: must be 32 bytes, or 40 characters of Z85",
        ),
        ({"curveServerKeyFile": PUBLIC, "curveSecretKeyFile": b"\xff"}, "curveSecretKeyFile=.*: the file is not text"),
        (
            {"curveServerKeyFile": PUBLIC, "curveSecretKeyFile": b"short"},
            "curveSecretKeyFile=.*: secret_key: must be 32",
        ),
        ({"username": "u", "passwordFile": b"\xff"}, "passwordFile=.*: the file is not text in UTF-8"),
        ({"username": "u", "passwordFile": b"p" * 256}, "passwordFile=.* with username='u': password: has 256 bytes"),
        ({"username": "u" * 256, "passwordFile": b"p"}, "passwordFile=.* with username='u+': username: has 256 bytes"),
    ],
)
def test_an_invalid_key_or_password_is_reported_with_option_and_path(
    options: dict[str, Any], error: str, tmp_path: Path
) -> None:
    given = dict(TOPIC)
    for name, content in options.items():
        given[name] = content if isinstance(content, str) else str(tmp_path / name)
        if isinstance(content, bytes):
            (tmp_path / name).write_bytes(content)
    with pytest.raises(omq.OptionError, match=f"option {error}"):
        TopicSettings.parse("read", given).security()


@pytest.mark.parametrize("parse", [PROVIDER.reader, PROVIDER.stream_reader])
@pytest.mark.parametrize(
    "field",
    [
        StructField("value", BinaryType(), False),
        StructField("headers", MapType(StringType(), BinaryType(), False)),
        StructField("value", StringType()),
    ],
)
def test_a_schema_that_does_not_fit_in_type_or_nulls_is_refused(parse: Any, field: StructField) -> None:
    with pytest.raises(omq.OptionError, match=r"the schema does not match: .* all of which may be null"):
        parse(TOPIC, StructType([field]))


def test_the_schema_follows_the_columns() -> None:
    assert TopicSettings.parse("read", TOPIC).schema == (
        "topic string, id bigint, timestamp timestamp, key binary, value binary, headers map<string,binary>"
    )
    assert TopicSettings.parse("read", {**TOPIC, "columns": "value,id"}).schema == "value binary, id bigint"


@pytest.mark.parametrize(
    "given", [{**TOPIC, "endingOffsets": "latest"}, {"socket": "PULL", "connect": URL, "maxRows": "1"}]
)
@pytest.mark.parametrize("first", ["initialOffset", "latestOffset", "partitions", "getDefaultReadLimit"])
def test_a_stream_of_a_batchs_options_is_refused_when_spark_asks(given: dict[str, str], first: str) -> None:
    reader = OmqDataSource(given).streamReader(StructType([StructField("value", BinaryType())]))
    with pytest.raises(omq.OptionError, match=r"not an option of readStream: '(endingOffsets|maxRows)'"):
        getattr(reader, first)()
    reader.stop()


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"topik": "t"}, "unknown option 'topik'; did you mean 'topic'.*option 'socket' is missing"),
        ({"sockt": "PULL"}, "unknown option 'sockt'; did you mean 'socket'"),
        ({"topicspattern": "t.*"}, "unknown option 'topicspattern'; did you mean 'topicPattern'"),
        ({"zzzz": "t"}, "unknown option 'zzzz'; option 'socket' is missing"),
        ({}, "^option 'socket' is missing"),
    ],
)
def test_a_misspelt_choice_of_an_endpoint_is_named(given: dict[str, str], error: str) -> None:
    found = OmqDataSource({"connect": URL, **given})
    with pytest.raises(omq.OptionError, match=error):
        found.schema()


def test_so_is_one_of_a_write() -> None:
    rows = StructType([StructField("value", BinaryType())])
    found = OmqDataSource({"connect": URL, "checkpointLocation": "/x", "topik": "t"})
    with pytest.raises(omq.OptionError, match="unknown option 'topik'; did you mean 'topic'"):
        found.streamWriter(rows, False)
