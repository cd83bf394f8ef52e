"""Measures replays, and reads from a place in a topic."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

from bench.broker.client_process import CLIENT_TIMEOUT_S, ClientProcess, sample_of, sample_of_trips
from bench.broker.filling import PORTIONS, available, check_room, fill, free, needed
from bench.broker.plan import BrokerLoad, Row
from bench.broker.progress import show
from bench.broker.servers import MeasuredServer, serving
from bench.measure import Sample

QUALIFYING_MESSAGES = 100_000  # of the replay that finds the better driver


class ReplayRunner:
    """Servers that are filled once, and are read again and again.

    Args:
        load: The load.
        place: The folder of their directories.
    """

    def __init__(self, load: BrokerLoad, place: Path) -> None:
        self._load, self._place = load, place
        self._servers: dict[str, MeasuredServer] = {}
        self._held = ExitStack()

    def close(self) -> None:
        """Ends the servers, and removes their data."""
        self._servers.clear()
        self._held.close()

    def turns(self, rows: tuple[Row, ...]) -> tuple[tuple[Row, ...], ...]:
        """Returns the groups of rows that take turns: all rows, or those of each server where there is too little room.

        There is room if the data of all servers fits on the disk, and in half of the memory, to be read warm.
        """
        stores = {_key(row) for row in rows if row.stores}
        if len(stores) * self._needed() < min(free(self._place), available() // 2):
            return (rows,)
        apart: dict[str, list[Row]] = {}
        for row in rows:
            apart.setdefault(_key(row), []).append(row)
        return tuple(map(tuple, apart.values()))

    def run(self, row: Row, driver: str) -> Sample:
        """Reads all messages."""
        return self._read(row, driver, self._load.messages)

    def qualify(self, row: Row, driver: str) -> Sample:
        """Reads the first messages."""
        return self._read(row, driver, min(QUALIFYING_MESSAGES, self._load.messages))

    def start(self, row: Row, driver: str) -> Sample:
        """Reads the first message from random places."""
        server = self._filled(row)
        with ClientProcess(row, driver, server, self._load) as client:
            client.wait_for("ready", CLIENT_TIMEOUT_S)
            return sample_of_trips(client)

    def _read(self, row: Row, driver: str, count: int) -> Sample:
        server = self._filled(row)
        with ClientProcess(row, driver, server, self._load) as client:
            client.wait_for("ready", CLIENT_TIMEOUT_S)
            before = server.busy()
            show(f"{row.label}: {count:,} messages are replayed")
            report = client.call("replay", count)
            busy = server.busy() - before
        return sample_of(count, report["ended"] - report["started"], server, busy, report["busy"])

    def _filled(self, row: Row) -> MeasuredServer:
        if _key(row) not in self._servers:
            check_room(row, self._needed(), self._place)
            server = self._held.enter_context(serving(row.service, row.settings, self._place))
            if row.stores:
                with ClientProcess(row, row.drivers[0], server, self._load) as client:
                    client.wait_for("ready", CLIENT_TIMEOUT_S)
                    client.call("create")
                    portion = max(self._load.depth, self._load.messages // PORTIONS)
                    fill(client, row.label, self._load.messages, portion)
                time.sleep(1.5)  # so that servers that sync each second have synced
            self._servers[_key(row)] = server
        return self._servers[_key(row)]

    def _needed(self) -> int:
        return needed(self._load.messages, self._load.size)


def _key(row: Row) -> str:
    """Returns the key of the server that a row reads from."""
    return f"{row.service} {row.stores} {sorted(row.settings.items())}"
