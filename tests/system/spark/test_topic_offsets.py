"""The bounds of microbatches of topics, run after run of one checkpoint: a broker, and no Spark."""

import json
import logging
import random
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow  # noqa: F401
import pytest

import omq
from omq.broker import Client, Server
from omq.spark.topics import source
from omq.spark.topics.catalog import DataLoss, TopicCatalog
from omq.spark.topics.settings import TopicSettings
from omq.spark.topics.source import TopicStreamReader
from tests.support.fork_server import ForkedProcess
from tests.support.ports import held
from tests.system.spark.test_topic_task import SERVER

pytestmark = pytest.mark.timeout(60)

Row = tuple[str, int]


class Checkpoint:
    """Spark's logs of a query: the end of each microbatch, as text, and how many of them are committed."""

    def __init__(self) -> None:
        self.ends: list[str] = []
        self.committed = 0


class Run:
    """A run of a query, as Spark does it."""

    def __init__(self, checkpoint: Checkpoint, url: str, **options: Any) -> None:
        given = {name: str(value) for name, value in options.items()}
        self._reader = TopicStreamReader(TopicSettings.parse("readStream", {"connect": url, **given}))
        self._checkpoint = checkpoint
        self._first: str | None = None

    def plan(self) -> bool:
        """Ends the next microbatch in the checkpoint, unless one is there; whether there is any."""
        checkpoint, begin = self._checkpoint, self._begin()
        if len(checkpoint.ends) > checkpoint.committed:
            return True
        if checkpoint.committed:
            self._reader.commit(json.loads(begin))
        end = json.dumps(self._reader.latestOffset(json.loads(begin), self._reader.getDefaultReadLimit()))
        # The first microbatch is planned in any case.
        if end == begin and checkpoint.committed:
            return False
        checkpoint.ends.append(end)
        return True

    def rows(self) -> list[Row]:
        """The topics and ids of the next microbatch, which is not committed; none where nothing is new."""
        if not self.plan():
            return []
        parts = self._reader.partitions(json.loads(self._begin()), json.loads(self._checkpoint.ends[-1]))
        batches = (batch for part in parts for batch in self._reader.read(part))
        return sorted((row["topic"], row["id"]) for batch in batches for row in batch.to_pylist())

    def take(self) -> list[Row]:
        """The same, and commits it."""
        found = self.rows()
        self._checkpoint.committed = len(self._checkpoint.ends)
        return found

    def stop(self) -> None:
        self._reader.stop()

    def _begin(self) -> str:
        if self._checkpoint.committed:
            return self._checkpoint.ends[self._checkpoint.committed - 1]
        if self._first is None:
            self._first = json.dumps(self._reader.initialOffset())
        return self._first


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(memory=True, bind="tcp://127.0.0.1:*") as server:
        yield server


class Query:
    """A query with its checkpoint."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.checkpoint = Checkpoint()
        self._runs: list[Run] = []

    def run(self, **options: Any) -> Run:
        """Starts it, or starts it again."""
        self._runs.append(Run(self.checkpoint, self.url, **options))
        return self._runs[-1]

    def stop(self) -> None:
        for run in self._runs:
            run.stop()


@pytest.fixture
def query(server: Server) -> Iterator[Query]:
    query = Query(server.endpoints["zmtp"])
    yield query
    query.stop()


def filled(client: Client, *names: str, count: int = 3, **settings: Any) -> None:
    """Makes topics with messages."""
    for name in names:
        client.create(name, **{"persistence": "transient", **settings})
        client.publish_many(name, [b"x"] * count)


def ids(topic: str, first: int, last: int) -> list[Row]:
    return [(topic, id) for id in range(first, last + 1)]


# ---------------------------------------------------------------------- topics that come and go


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after", "chosen"),
    [
        ({"topics": "a,b"}, {"topic": "b"}, "topic='b'"),
        ({"topicPattern": "[ab]"}, {"topicPattern": "b"}, "topicPattern='b'"),
        ({"topicPattern": "[ab]"}, {"topics": "b"}, "topics='b'"),
    ],
)
def test_a_topic_that_is_not_chosen_any_more_is_not_reported_as_deleted(
    before: dict[str, str], after: dict[str, str], chosen: str, client: Client, query: Query
) -> None:
    filled(client, "a", "b")
    assert query.run(startingOffsets="earliest", **before).take() == ids("a", 1, 3) + ids("b", 1, 3)
    client.publish("b", b"y")
    error = f"topic 'a' of the checkpoint is no longer among those of option {chosen}: messages after id 3"
    with pytest.raises(DataLoss, match=re.escape(error)):
        query.run(**after).rows()
    assert query.run(failOnDataLoss=False, **after).take() == ids("b", 4, 4)
    # The same where the microbatch was planned already.
    client.publish_many("a", [b"y"])
    query.run(**before).plan()
    with pytest.raises(DataLoss, match="topic 'a' of the checkpoint is no longer among those"):
        query.run(**after).rows()


def test_a_topic_that_was_deleted_is_reported_as_deleted(client: Client, query: Query) -> None:
    filled(client, "a", "b")
    query.run(startingOffsets="earliest", topics="a,b").take()
    client.delete("a")
    with pytest.raises(DataLoss, match="topic 'a' was deleted: messages after id 3 are not read"):
        query.run(topics="a,b").rows()
    filled(client, "a")
    with pytest.raises(DataLoss, match="topic 'a' was deleted, and created again: messages after id 3 are not read"):
        query.run(topics="a,b").rows()


def test_retention_that_overtakes_a_stream_is_data_loss(client: Client, query: Query) -> None:
    filled(client, "a", max_messages=4)
    query.run(topic="a", startingOffsets="earliest").take()
    for _ in range(8):
        client.publish("a", b"y")
    (info,) = client.topics("a")
    assert info.first > 4
    with pytest.raises(DataLoss, match=f"topic 'a' now begins with {info.first}: ids 4 to {info.first - 1} are lost"):
        query.run(topic="a").rows()
    assert query.run(topic="a", failOnDataLoss=False).take() == ids("a", info.first, 11)


# ---------------------------------------------------------------------- how much is in a microbatch


def test_a_microbatch_waits_for_rows_but_not_longer_than_it_may(
    client: Client, query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(source, "time", SimpleNamespace(monotonic=lambda: now[0]))
    filled(client, "a", "b", count=2)
    run = query.run(topics="a,b", startingOffsets="earliest", minRowsPerTrigger=5, maxTriggerDelay="5s")
    assert run.take() == []
    client.publish("b", b"y")
    assert run.take() == ids("a", 1, 2) + ids("b", 1, 3)
    client.publish("a", b"y")
    now[0] += 4.9
    assert run.take() == []
    now[0] += 0.2
    assert run.take() == ids("a", 3, 3)


def test_rows_of_a_microbatch_are_shared_among_topics(client: Client, query: Query) -> None:
    filled(client, "a", count=30)
    filled(client, "b", count=10)
    run = query.run(topics="a,b", startingOffsets="earliest", maxRowsPerTrigger=20)
    assert run.take() == ids("a", 1, 15) + ids("b", 1, 5)
    assert run.take() == ids("a", 16, 30) + ids("b", 6, 10)
    assert not run.plan()


@pytest.mark.slow
def test_bytes_of_a_microbatch_are_shared_among_topics_and_a_large_message_passes(client: Client, query: Query) -> None:
    for name in ("a", "b"):
        client.create(name, persistence="transient")
        client.publish_many(name, [b"x" * 991] * 50)  # 1,000 bytes each with the record's header
    client.publish("a", b"x" * 100_000)
    run = query.run(topics="a,b", startingOffsets="earliest", maxBytesPerTrigger=20_000)
    taken = run.take()
    assert {topic for topic, _ in taken} == {"a", "b"}
    while rows := run.take():
        assert len(rows) <= 21
        taken += rows
    assert sorted(taken) == ids("a", 1, 51) + ids("b", 1, 50)


def test_a_small_topic_is_not_passed_over_next_to_a_large_one(client: Client, query: Query) -> None:
    filled(client, "large", count=5000)
    filled(client, "small", count=2)
    run = query.run(topics="large,small", startingOffsets="earliest", maxRowsPerTrigger=10)
    assert run.take() == ids("large", 1, 9) + ids("small", 1, 1)
    assert run.take() == ids("large", 10, 18) + ids("small", 2, 2)


@pytest.mark.slow
def test_ids_that_a_killed_broker_has_left_out_are_no_rows(tmp_path: Path) -> None:
    with held() as port:
        url = f"tcp://127.0.0.1:{port}"
        with ForkedProcess("-c", SERVER, tmp_path, url) as process, Client(url) as client:
            client.create("a", persistence="async")
            client.create("b", persistence="strong")
            client.publish_many("a", [b"x"] * 3)
            client.publish("b", b"x")  # so that what is before it is written
            process.kill()
        with ForkedProcess("-c", SERVER, tmp_path, url) as process, Client(url) as client:
            first = client.publish("a", b"x")
            assert first > 1000
            client.publish_many("b", [b"x"] * 10)
            query = Query(url)
            run = query.run(topics="a,b", startingOffsets="earliest", maxRowsPerTrigger=10)
            got: list[Row] = []
            while len(got) < 15:
                taken = run.take()
                assert taken, got
                got += taken
            assert sorted(got) == [*ids("a", 1, 3), ("a", first), *ids("b", 1, 11)]
            query.stop()
            process.kill()


@pytest.mark.parametrize("fails", [True, False])
def test_a_store_that_is_an_older_one_is_data_loss(
    fails: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store, backup = tmp_path / "store", tmp_path / "backup"
    with Server(store, bind="tcp://127.0.0.1:*") as server, Client(server.endpoints["zmtp"]) as client:
        filled(client, "a", count=5, persistence="strong")
    shutil.copytree(store, backup)
    with held() as port:
        url = f"tcp://127.0.0.1:{port}"
        with Server(store, bind=url), Client(url) as client:
            client.publish_many("a", [b"x"] * 5)
            query = Query(url)
            assert query.run(topic="a", startingOffsets="earliest").take() == ids("a", 1, 10)
            query.stop()
        shutil.rmtree(store)
        shutil.copytree(backup, store)
        with Server(store, bind=url), Client(url) as client:
            client.publish_many("a", [b"new"] * 3)
            run = query.run(topic="a", failOnDataLoss=str(fails).lower())
            error = "topic 'a' ends with id 8, and the query has read up to id 10: the broker's store is an older copy"
            if fails:
                with pytest.raises(DataLoss, match=error):
                    run.take()
            else:
                run.take()
                assert error in caplog.text
                client.publish_many("a", [b"new"] * 2)
                assert run.take() == ids("a", 9, 10)
            query.stop()


def test_a_named_topic_that_is_missing_is_reported_also_by_a_checkpoint(client: Client, query: Query) -> None:
    filled(client, "a")
    assert query.run(topic="a", startingOffsets="earliest").take() == ids("a", 1, 3)
    with pytest.raises(omq.OmqError, match=r"has no topic 'typo'; its topics are: a"):
        query.run(topics="a,typo").take()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"topic": "jobs"}, "option topic='jobs': 'jobs' is a round-robin topic"),
        ({"topics": "few,jobs"}, "option topics='few,jobs': 'jobs' is a round-robin topic"),
        (
            {"topic": "few", "startingOffsets": '{"few": 5}'},
            "option startingOffsets=5 of topic 'few' is beyond the end",
        ),
        (
            {"topic": "few", "startingOffsets": '{"other": 1}'},
            "option startingOffsets: 'other' is not a topic of topic='few'",
        ),
    ],
)
def test_a_start_that_the_broker_does_not_have_is_refused(
    options: dict[str, str], error: str, client: Client, query: Query
) -> None:
    filled(client, "few")
    client.create("jobs", delivery="round-robin", persistence="transient")
    with pytest.raises(omq.OmqError, match=error):
        query.run(**options).rows()


def test_a_checkpoint_of_another_broker_is_refused(client: Client, query: Query) -> None:
    filled(client, "a")
    assert query.run(topic="a", startingOffsets="earliest").take() == ids("a", 1, 3)
    with Server(memory=True, bind="tcp://127.0.0.1:*") as other, Client(other.endpoints["zmtp"]) as there:
        filled(there, "a", count=9)
        query.url = other.endpoints["zmtp"]
        with pytest.raises(DataLoss, match=f"option connect='{query.url}': the checkpoint belongs to another broker"):
            query.run(topic="a").rows()
        query.stop()


def test_starting_offsets_may_name_some_topics_only(client: Client, query: Query, server: Server) -> None:
    filled(client, "a", "b")
    run = query.run(topics="a,b", startingOffsets='{"a": 2}')
    assert run.take() == ids("a", 2, 3)
    client.publish("b", b"y")
    assert run.take() == ids("b", 4, 4)
    given = TopicSettings.parse(
        "read", {"connect": server.endpoints["zmtp"], "topics": "a,b", "startingOffsets": '{"a": 2}'}
    )
    reader = source.TopicReader(given)
    batches = (batch for part in reader.partitions() for batch in reader.read(part))
    assert sorted((row["topic"], row["id"]) for one in batches for row in one.to_pylist()) == [
        *ids("a", 2, 3),
        *ids("b", 1, 4),
    ]


# ---------------------------------------------------------------------- where a subscription begins


def positions(client: Client, topic: str) -> dict[str, int]:
    return {one.name: one.position for one in client.durables(topic)}


@pytest.mark.parametrize(
    "start",
    [
        {"startingOffsets": '{"a": 1}'},  # which is not kept any more
        {"startingOffsets": '{"a": 99}'},
        {"startingOffsets": '{"other": 1}'},
        {"startingTimestamp": "0"},
        {},
    ],
)
def test_where_a_subscription_has_a_position_no_other_start_counts(
    start: dict[str, str], client: Client, query: Query, server: Server
) -> None:
    filled(client, "a", max_messages=4, count=1)
    query.run(topic="a", subscription="job", startingOffsets="latest").take()
    for _ in range(8):
        client.publish("a", b"x")
    (info,) = client.topics("a")
    with client.subscribe("a", name="job", replay=info.first) as held:
        held.ack(info.first)
    again = Query(server.endpoints["zmtp"])
    assert again.run(topic="a", subscription="job", **start).take() == ids("a", info.first + 1, 9)
    again.stop()


def test_a_subscription_reaches_the_end_of_the_last_microbatch_while_the_topic_is_idle(
    client: Client, server: Server
) -> None:
    """Spark commits a microbatch to the source with the next one; until then it only asks for more."""
    filled(client, "a")
    given = {"connect": server.endpoints["zmtp"], "topic": "a", "subscription": "job", "startingOffsets": "earliest"}
    reader = TopicStreamReader(TopicSettings.parse("readStream", given))
    first = reader.initialOffset()
    end = reader.latestOffset(first, reader.getDefaultReadLimit())
    assert positions(client, "a") == {"job": 0}
    assert reader.latestOffset(end, reader.getDefaultReadLimit()) == end
    assert positions(client, "a") == {"job": 3}
    reader.stop()


def test_a_topic_that_comes_later_is_pinned_when_it_is_seen_and_begins_with_what_it_keeps(
    client: Client, query: Query, server: Server
) -> None:
    filled(client, "t.a")
    options = {"topicPattern": "t.*", "subscription": "job"}
    run = query.run(**options)
    assert run.take() == []
    client.create("t.b", persistence="transient")
    client.create("t.c", persistence="transient")
    assert run.take() == []
    assert positions(client, "t.b") == {"job": 0}
    client.publish_many("t.b", [b"x"] * 3)
    assert run.rows() == ids("t.b", 1, 3)  # and the query fails
    client.publish_many("t.c", [b"x"] * 2)
    client.create("t.d", persistence="transient")
    client.publish_many("t.d", [b"x"] * 2)
    # Its checkpoint is lost, too: `latest` is for the first start, and not for topics that came since.
    lost = Query(server.endpoints["zmtp"])
    assert lost.run(**options).take() == ids("t.b", 1, 3) + ids("t.c", 1, 2) + ids("t.d", 1, 2)
    assert positions(client, "t.d") == {"job": 0}
    lost.stop()


def test_cursors_of_known_topics_are_not_created_again(
    client: Client, query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(client, "t.a")
    run = query.run(topicPattern="t.*", subscription="job")
    run.take()
    client.create("t.b", persistence="transient")
    created: list[dict[str, int]] = []
    create = TopicCatalog.create_cursors
    monkeypatch.setattr(
        TopicCatalog, "create_cursors", lambda self, starts: (created.append(dict(starts)), create(self, starts))
    )
    for _ in range(3):
        run.take()
    assert created == [{"t.b": 1}, {}, {}]


def test_a_topic_that_is_created_again_has_a_new_cursor(
    client: Client, query: Query, caplog: pytest.LogCaptureFixture
) -> None:
    filled(client, "a")
    run = query.run(topic="a", subscription="job", failOnDataLoss=False, startingOffsets="earliest")
    assert run.take() == ids("a", 1, 3)
    client.publish("a", b"y")
    run.take()
    client.delete("a")
    filled(client, "a")
    assert run.rows() == ids("a", 1, 3)
    assert positions(client, "a") == {"job": 0}
    run.take()
    client.publish("a", b"y")
    run.take()
    assert positions(client, "a") == {"job": 3}
    assert "another query" not in caplog.text


def test_two_queries_with_one_subscription_are_reported(
    client: Client, query: Query, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    filled(client, "a")
    other = Query(server.endpoints["zmtp"])
    one, two = (each.run(topic="a", subscription="job") for each in (query, other))
    for _ in range(4):
        client.publish("a", b"y")
        one.take()
    assert caplog.text == ""
    for _ in range(4):
        client.publish_many("a", [b"y"] * 2)
        two.take()
        client.publish("a", b"y")
        one.take()
    other.stop()
    found = [record.getMessage() for record in caplog.records if "another query moves it" in record.getMessage()]
    assert len(found) == 2  # each of them once
    assert "subscription='job' of topic 'a' was left at id " in found[0]


# ---------------------------------------------------------------------- where microbatches begin


@pytest.mark.parametrize("subscription", [{}, {"subscription": "job"}])
@pytest.mark.parametrize(
    ("start", "first"),
    [
        ({}, []),
        ({"startingOffsets": "latest"}, []),
        ({"startingOffsets": "earliest"}, ids("a", 1, 3)),
        ({"startingOffsets": '{"a": 3}'}, ids("a", 3, 3)),
        ({"startingOffsets": '{"a": 4}'}, []),
        ({"startingTimestamp": "0"}, ids("a", 1, 3)),
    ],
)
def test_a_first_microbatch_that_fails_comes_again_as_it_was(
    start: dict[str, str], first: list[Row], subscription: dict[str, str], client: Client, query: Query
) -> None:
    filled(client, "a")
    for _ in range(3):
        assert query.run(topic="a", **start, **subscription).rows() == first
        client.publish("a", b"y")
    run = query.run(topic="a", **start, **subscription)
    assert run.take() == first
    assert run.take() == ids("a", 4, 6)


@pytest.mark.parametrize("start", ["latest", "earliest"])
def test_the_start_of_a_microbatch_makes_no_microbatch_without_rows(start: str, client: Client, query: Query) -> None:
    filled(client, "a", "b")
    run = query.run(topics="a,b", startingOffsets=start)
    run.take()
    assert not run.plan()
    client.publish("b", b"y")
    assert run.take() == ids("b", 4, 4)
    assert not run.plan()
    assert not query.run(topics="a,b").plan()


def test_a_first_microbatch_that_retention_overtakes_is_data_loss(client: Client, query: Query) -> None:
    filled(client, "a", max_messages=4)
    query.run(topic="a", startingOffsets="earliest").plan()
    for _ in range(8):
        client.publish("a", b"y")
    (info,) = client.topics("a")
    assert info.first > 3
    error = f"topic 'a' now begins with {info.first}: ids 1 to 3 are lost"
    with pytest.raises(DataLoss, match=error):
        query.run(topic="a", startingOffsets="earliest").rows()
    run = query.run(topic="a", startingOffsets="earliest", failOnDataLoss=False)
    assert run.take() == []
    assert run.take() == ids("a", info.first, 11)


def test_the_first_microbatch_of_a_topic_that_retention_overtakes_is_data_loss(client: Client, query: Query) -> None:
    filled(client, "t.a")
    run = query.run(topicPattern="t.*", startingOffsets="earliest")
    run.take()
    filled(client, "t.b", max_messages=4)
    run.plan()
    for _ in range(8):
        client.publish("t.b", b"y")
    for one in (run, query.run(topicPattern="t.*")):
        with pytest.raises(DataLoss, match=r"topic 't.b' now begins with .*: ids 1 to 3 are lost"):
            one.rows()


def of_before(query: Query) -> None:
    """Makes the checkpoint one of a version that did not note where a microbatch began."""
    ends = [json.loads(one) for one in query.checkpoint.ends]
    for end in ends:
        for place in end["topics"].values():
            place.pop("from", None)
    query.checkpoint.ends = [json.dumps(one) for one in ends]


def test_an_older_checkpoint_is_read_and_what_it_lacks_is_reported(
    client: Client, query: Query, caplog: pytest.LogCaptureFixture
) -> None:
    filled(client, "a")
    query.run(topic="a").plan()
    of_before(query)
    client.publish("a", b"y")
    run = query.run(topic="a")
    with caplog.at_level(logging.WARNING, "omq.spark"):
        assert run.take() == []
    assert "topic 'a': the start of the checkpoint's first microbatch is no longer known" in caplog.text
    assert "continues with id 4" in caplog.text
    assert run.take() == ids("a", 4, 4)
    of_before(query)
    client.publish("a", b"y")
    assert query.run(topic="a").take() == ids("a", 5, 5)


def test_a_checkpoint_that_goes_backwards_is_refused(client: Client, query: Query) -> None:
    filled(client, "a")
    run = query.run(topic="a", startingOffsets="earliest")
    run.take()
    client.publish("a", b"y")
    run.take()
    query.checkpoint.ends.append(query.checkpoint.ends[0].replace('"from": 1, ', ""))
    with pytest.raises(omq.StateError, match="the checkpoint goes backwards: topic 'a' from 5 to 4"):
        query.run(topic="a").rows()


@pytest.mark.parametrize("seed", [*range(2), *(pytest.param(n, marks=pytest.mark.slow) for n in range(2, 6))])
@pytest.mark.parametrize("subscription", [{}, {"subscription": "job"}])
def test_every_message_comes_once_whatever_happens_when(
    seed: int, subscription: dict[str, str], client: Client, query: Query, caplog: pytest.LogCaptureFixture
) -> None:
    chance = random.Random(seed)
    options = {"topicPattern": "t.*", "startingOffsets": "earliest", **subscription}
    filled(client, "t.0")
    count = {"t.0": 3}
    taken: list[Row] = []
    run = query.run(**options)
    for step in range(1, 41):
        match chance.choice(["publish", "publish", "topic", "plan", "rows", "take", "take", "restart"]):
            case "publish":
                name = chance.choice(list(count))
                client.publish(name, b"x")
                count[name] += 1
            case "topic":
                client.create(f"t.{step}", persistence="transient")
                count[f"t.{step}"] = 0
            case "plan":
                run.plan()
            case "rows":
                assert run.rows() == run.rows()
            case "take":
                taken += run.take()
            case "restart":
                run = query.run(**options)
    taken += run.take() + run.take()
    assert not run.plan()
    assert sorted(taken) == sorted((name, id) for name, last in count.items() for id in range(1, last + 1))
    assert "another query" not in caplog.text
