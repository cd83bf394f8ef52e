"""The process of a host that has the connection of a sink, and the processes that write through it."""

import secrets
import socket
import time

import pyarrow as pa
import pytest

import omq
from omq.spark.live import sink
from omq.spark.live.settings import SocketSettings
from omq.spark.options import STREAM_WRITE, WRITE


@pytest.mark.parametrize(
    ("columns", "given", "error"),
    [
        ({"id": "bigint"}, {}, "column 'id' of type bigint: a sink takes 'value'"),
        ({"value": "string", "topic": "string"}, {}, "column 'topic': it is for a PUB, not for a PUSH"),
        ({"topic": "string"}, {"socket": "PUB"}, "either the column 'value' or the column 'parts'"),
        ({"value": "string", "topic": "string"}, {"socket": "PUB", "topic": "t"}, "exclude each other; use one"),
    ],
)
def test_columns_that_a_socket_cannot_send_are_refused(
    columns: dict[str, str | None], given: dict[str, str], error: str
) -> None:
    settings = SocketSettings.parse(WRITE, {"socket": "PUSH", "connect": "tcp://127.0.0.1:1", **given})
    with pytest.raises(omq.OptionError, match=error):
        sink.check_columns(settings, columns)


def test_a_process_that_sends_nothing_delays_others_only_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink, "REQUEST_TIMEOUT_S", 0.3)
    key = secrets.token_hex(8)
    writer = sink.claim(key, SocketSettings.parse(STREAM_WRITE, {"socket": "PUSH", "bind": "tcp://127.0.0.1:*"}))
    assert writer is not None
    batch = pa.RecordBatch.from_pydict({"value": [b"1", b"2"]})
    with omq.PULL(connect=writer.sender.socket.endpoints[0]) as pull:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as silent:
            silent.connect(sink._socket_name(key))
            begun = time.monotonic()
            assert sink.deliver(key, batch.schema, [batch]) == sink.RowsSent(2, 2)
            assert time.monotonic() < begun + 5
        assert sink.deliver(key, batch.schema, []) == sink.RowsSent()
        assert [pull.recv(timeout=5) for _ in range(2)] == [b"1", b"2"]
        nulls = pa.RecordBatch.from_pydict({"value": pa.array([None], pa.binary())})
        with pytest.raises(omq.OmqError, match="has a null"):
            sink.deliver(key, nulls.schema, [nulls])
    writer.sender.socket.stop()
    writer.listener.close()
    sink._writers.clear()
    assert sink.deliver(secrets.token_hex(8), batch.schema, [batch]) is None
