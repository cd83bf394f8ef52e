"""A task's side of a read: it finds the owner of its partition, and reads a microbatch through it."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import time
from array import array
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

import pyarrow as pa

import omq
from omq.spark.live import owner, reading
from omq.spark.live import settings as options
from omq.spark.live.columns import Columns, Marks, Messages, Taken
from omq.spark.live.settings import Settings
from omq.spark.live.shared_memory import mapped
from omq.spark.live.trusted import SILENCE, Channel, Place, Unreachable, reach
from omq.unpatched import sleep, subprocess

log = logging.getLogger("omq.spark")

AWAY: Final = 20.0  # seconds that the coordinator may be away
AGAIN: Final = 0.2  # seconds between two attempts
BREAKS: Final = 3  # times that a line may break one after the other, before a message has come


@dataclass(frozen=True)
class Share:
    """What a task is to read.

    Attributes:
        name: What the connection of its partition is called.
        endpoint: The endpoint of that.
        after: The last microbatch that is committed.
        microbatch: The microbatch to read.
        drain: A name that all microbatches of one `availableNow` have; empty for any other read.
        planned: Whether this run of the query has planned the microbatch; else a former run had, and may have read it.
        coordinator: Where the coordinator is.
        secret: The stream's secret.
    """

    name: str
    endpoint: str
    after: int
    microbatch: int
    drain: str
    planned: bool
    coordinator: Place
    secret: bytes


class _Broken(Exception):
    """The line to the owner has broken before the end."""


class _OwnerAway(Exception):
    """The owner has lost the coordinator, and looks for it."""


def read(settings: Settings, share: Share) -> Iterator[pa.RecordBatch]:
    """The rows of one microbatch of one partition.

    Raises:
        OmqError: What hinders the owner; or there is none, and none can be started.
    """
    shape = reading.shape(settings)
    given = breaks = 0
    giver = ""
    while True:
        place = _find(settings, share)
        if given and place.name != giver:
            # What has been handed on cannot be taken back, and this owner knows nothing of it: the microbatch ends.
            text = f"{share.endpoint}: the process that had the connection has ended in the midst of a microbatch"
            if settings.fail_on_data_loss:
                raise omq.StateError(f"{text} (failOnDataLoss=true)")
            log.warning("%s; what it had read ahead is lost", text)
            return
        giver = place.name
        try:
            for taken in _taken(settings, share, place, given):
                given, breaks = given + 1, 0
                yield taken.batch(shape)
            return
        except _OwnerAway:
            sleep(AGAIN)
        except (_Broken, Unreachable) as error:
            if _ask(share, {"lives": share.name, "place": place.name})["lives"]:
                # It keeps what it has given: the rest of it is there.
                breaks += 1
                if breaks > BREAKS:
                    where = ", ".join(place.addresses)
                    raise omq.StateError(
                        f"{share.endpoint}: the process that has the connection (on {where}, port {place.port}) cannot"
                        f" be reached from this executor: {error}"
                    ) from None
                sleep(AGAIN)


def _find(settings: Settings, share: Share) -> Place:
    """Where the owner is; starts it, if the coordinator says so."""
    plan = owner.Plan(settings, share.name, share.endpoint, share.coordinator, share.secret)
    asked: dict[str, Any] = {"find": share.name}
    while True:
        answer = _ask(share, asked)
        if "owner" in answer:
            return Place.heard(answer["owner"])
        if "error" in answer:
            raise _error(answer)
        try:
            owner.start(plan)
        except (OSError, subprocess.SubprocessError) as error:
            text = f"the process that is to have the connection cannot be started: {error}"
            _tell(share, {**asked, "failed": text})
            raise omq.StateError(text) from None
        asked["failures"] = answer["failures"]


def _tell(share: Share, told: dict[str, Any]) -> None:
    """Tells the coordinator something, if it is there."""
    with (
        contextlib.suppress(OSError, Unreachable),
        contextlib.closing(reach(share.coordinator, share.secret)) as channel,
    ):
        channel.send(told)


def _ask(share: Share, asked: dict[str, Any]) -> dict[str, Any]:
    """Asks the coordinator, which may be away for a moment: the driver replaces one that has died."""
    deadline = time.monotonic() + AWAY
    while True:
        try:
            with contextlib.closing(reach(share.coordinator, share.secret)) as channel:
                return channel.ask(asked)
        except (OSError, EOFError, Unreachable) as error:
            if time.monotonic() > deadline:
                raise omq.StateError(
                    "the stream's coordinator, beside the driver, cannot be reached from this executor (SPARK_LOCAL_IP"
                    f" on the driver names the address that it listens on): {error}"
                ) from None
            sleep(AGAIN)


def _taken(settings: Settings, share: Share, place: Place, given: int) -> Iterator[Taken]:
    """What the owner has of the microbatch, without the first that were given before."""
    with contextlib.closing(reach(place, share.secret)) as channel:
        request = {
            "settings": pickle.dumps(settings).hex(),
            "read": share.microbatch,
            "after": share.after,
            "drain": share.drain,
            "given": given,
            "planned": share.planned,
            "limits": asdict(reading.limits(settings, bool(share.drain))),
            "columns": options.columns(settings),
        }
        with _owners():
            channel.sock.settimeout(SILENCE)
            channel.send(request)
        while True:
            with _owners():
                told, descriptors = channel.receive()
                taken = _heard(channel, told, descriptors) if "as" in told else None
            if taken is not None:
                yield taken
            elif "alive" in told:
                continue
            elif "later" in told:
                raise _OwnerAway
            elif "error" in told:
                raise _error(told)
            elif "done" in told:
                return
            else:
                raise _Broken(f"it says {sorted(told)}")


@contextlib.contextmanager
def _owners() -> Iterator[None]:
    """Traffic with the owner."""
    try:
        yield
    except (OSError, EOFError) as error:
        raise _Broken(str(error)) from error


def _heard(channel: Channel, told: dict[str, Any], descriptors: list[int]) -> Taken:
    """What the owner has sent, or says where it stands."""
    marks = Marks(told["endpoint"], told["first"])
    runs, *parts = [channel.beside(size) for size in told["beside"]]
    numbers = array("q", bytes(runs))
    marks.runs = list(zip(numbers[::2], numbers[1::2], strict=True))
    marks.count = sum(numbers[1::2])
    if told["as"] == "blocks":
        if len(descriptors) < len(told["sizes"]):
            # The kernel leaves out what does not fit into our table.
            for one in descriptors:
                os.close(one)
            raise omq.StateError("the owner's memory cannot be mapped: no descriptor is left here (ulimit -n)")
        try:
            body, ends = (pa.py_buffer(mapped(*one)) for one in zip(descriptors, told["sizes"], strict=True))
        except OSError as error:
            # This task lacks something, and the owner is well: another attempt gets the same.
            raise omq.StateError(f"the owner's memory cannot be mapped: {error}") from error
        return Columns(body.slice(0, told["size"]), ends.slice(0, 4 * (marks.count + 1)), marks)
    if told["as"] == "messages":
        schema = pa.schema([pa.field("parts", pa.list_(pa.binary()))])
        messages = pa.ipc.read_record_batch(pa.py_buffer(parts[0]), schema).column(0).to_pylist()
        return Messages(messages, told["size"], marks)
    ends, body = map(pa.py_buffer, parts)
    return Columns(body, ends, marks)


_ERRORS = {name: one for name, one in vars(omq).items() if isinstance(one, type) and issubclass(one, omq.OmqError)}


def _error(told: dict[str, Any]) -> Exception:
    """The error that another process tells of."""
    kind = _ERRORS.get(told["kind"], omq.OmqError)
    try:
        return kind(told["error"])
    except TypeError:
        return omq.OmqError(told["error"])
