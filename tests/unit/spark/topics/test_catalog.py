"""The bounds of a read by time, with a client that records its requests."""

from typing import Any

import pyarrow  # noqa: F401
import pytest

from omq.broker import BrokerTimeout, TopicInfo
from omq.spark.options import READ
from omq.spark.topics.catalog import TopicCatalog
from omq.spark.topics.settings import TopicSettings


class Client:
    """Finds an id, or fails."""

    def __init__(self, found: int) -> None:
        self.found = found
        self.requests: list[tuple[str, float]] = []
        self.error: Exception | None = None

    def offset_at(self, topic: str, time: float) -> int:
        self.requests.append((topic, time))
        if self.error is not None:
            raise self.error
        return self.found


def catalog(client: Client, **options: str) -> Any:
    found: Any = TopicCatalog(TopicSettings.parse(READ, {"connect": "tcp://127.0.0.1:9", "topic": "t", **options}))
    found._client = client
    return found


INFOS = {"t": TopicInfo(name="t", id=1, delivery="broadcast", persistence="weak", first=3, last=9)}


def test_times_are_looked_up_by_the_broker_in_milliseconds() -> None:
    client = Client(5)
    found = catalog(client, startingTimestamp="1500000000123", endingTimestamp="1500000000999")
    assert found.starts(INFOS) == found.stops(INFOS) == {"t": 5}
    assert client.requests == [("t", 1_500_000_000.123), ("t", 1_500_000_000.999)]


def test_messages_that_come_after_the_bounds_were_planned_are_not_lost() -> None:
    found = catalog(Client(12), startingTimestamp="1", endingTimestamp="1")
    assert found.starts(INFOS) == found.stops(INFOS) == {"t": 10}


def test_any_time_has_a_bound() -> None:
    client = Client(10)
    assert catalog(client, startingTimestamp="1" + 400 * "0").starts(INFOS) == {"t": 10}
    assert client.requests == [("t", 253_402_300_800.0)]


def test_a_timeout_names_the_options() -> None:
    client = Client(5)
    client.error = BrokerTimeout("no answer")
    with pytest.raises(BrokerTimeout, match=r"^option connect='tcp://127.0.0.1:9': no answer \(option timeout=30\)$"):
        catalog(client, startingTimestamp="1").starts(INFOS)
