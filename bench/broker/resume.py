"""Measures cursors that resume: one store that is filled once, and a broker in the state that each row asks for."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from bench.broker.client_process import CLIENT_TIMEOUT_S, ClientProcess
from bench.broker.filling import check_room, fill, needed
from bench.broker.plan import TOPICS, BrokerLoad, Row
from bench.broker.progress import show
from bench.broker.servers import MeasuredServer, fresh_directory, serving_from
from bench.measure import Sample


class ResumeRunner:
    """The store, and the broker that serves it.

    Args:
        load: The load.
        place: The folder of its directory.
    """

    def __init__(self, load: BrokerLoad, place: Path) -> None:
        self._load, self._place = load, place
        self._each = max(2, load.kept // TOPICS)
        self._position = self._each // 2  # the position of the cursors
        self._held = ExitStack()
        self._serving = ExitStack()
        self._directory: Path | None = None
        self._server: MeasuredServer | None = None

    def close(self) -> None:
        """Ends the server, and removes the store."""
        self._serving.close()
        self._held.close()
        self._directory = self._server = None

    def run(self, row: Row, driver: str) -> Sample:
        """Measures cursors one by one, then all at once; a broker that is to be restarted is restarted before each."""
        server = self._filled(row, driver)
        opened: list[float] = []
        times: dict[str, list[float]] = {}
        for order in ("one_by_one", "at_once"):
            if row.options["state"] != "running":
                server = self._restarted(row, server, opened)
            with ClientProcess(row, driver, server, self._load) as client:
                client.wait_for("ready", CLIENT_TIMEOUT_S)
                times[order] = client.call(order, self._position)
        each = times["one_by_one"]
        figures = {"worst": max(each), "middle": median(each), "all": times["at_once"][0]}
        sample = {key: 1e3 * seconds for key, seconds in figures.items()}
        sample["memory"] = server.memory() / (1 << 20)
        return sample | ({"opens": median(opened)} if opened else {})

    def _filled(self, row: Row, driver: str) -> MeasuredServer:
        if self._server is not None:
            return self._server
        check_room(row, needed(self._load.kept, self._load.size), self._place)
        self._directory = self._held.enter_context(fresh_directory(row.service, self._place))
        server = self._serve(row)
        with ClientProcess(row, driver, server, self._load) as client:
            client.wait_for("ready", CLIENT_TIMEOUT_S)
            client.call("create")
            fill(client, row.label, self._each * TOPICS, self._each)
            show("cursors are left at the position to resume from")
            client.call("leave", self._position)
        time.sleep(1.5)  # so that the broker has flushed
        return server

    def _serve(self, row: Row) -> MeasuredServer:
        assert self._directory is not None
        self._server = self._serving.enter_context(serving_from(self._directory, row.service, row.settings))
        return self._server

    def _restarted(self, row: Row, server: MeasuredServer, opened: list[float]) -> MeasuredServer:
        if row.options["state"] == "restarted":
            server.end_orderly()
        self._serving.close()  # SIGKILL
        started = time.monotonic()
        server = self._serve(row)
        opened.append(time.monotonic() - started)
        return server
