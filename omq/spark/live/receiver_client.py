"""A task's side of a read: it finds the receiver of its partition, and reads a microbatch through it."""

from __future__ import annotations

import contextlib
import logging
import time
from array import array
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

import omq
from omq.spark.buffer_pool import mapped
from omq.spark.live import receiver
from omq.spark.live.columns import MessageBatch
from omq.spark.live.receiver import ReadRequest
from omq.spark.live.rpc import IDLE_TIMEOUT_S, ProcessAddress, Unreachable, connect
from omq.spark.live.settings import SocketSettings
from omq.unpatched import sleep, subprocess

log = logging.getLogger("omq.spark")

UNREACHABLE_TIMEOUT_S: Final = 20.0  # for which the network to the coordinator may be broken
RETRY_DELAY_S: Final = 0.2
MAX_BREAKS: Final = 3  # of the connection to the receiver, one after the other, before a message has come


def read(settings: SocketSettings, request: ReadRequest) -> Iterator[pa.RecordBatch]:
    """Yields the rows of one microbatch of one partition.

    Raises:
        OmqError: The receiver fails; or there is none, and none can be started.
    """
    giver, given, breaks = "", 0, 0
    broken: Exception | None = None
    while True:
        address = _find(settings, request, giver if broken else "")
        if address.name != giver and given:
            # Rows that Spark has cannot be taken back, and this receiver has none of the others: the microbatch ends.
            text = f"{request.endpoint}: the receiver has died in the midst of a microbatch"
            if settings.fail_on_data_loss:
                raise omq.StateError(f"{text} (failOnDataLoss=true)")
            log.warning("%s; what it had read ahead is lost", text)
            return
        if address.name == giver and broken:
            # It keeps what it has given: the rest of it is there.
            breaks += 1
            if breaks > MAX_BREAKS:
                where = ", ".join(address.addresses)
                raise omq.StateError(
                    f"{request.endpoint}: the receiver (on {where}, port {address.port}) cannot be reached from this"
                    f" executor: {broken}"
                )
            sleep(RETRY_DELAY_S)
        giver, broken = address.name, None
        try:
            for taken in _taken(request, address, given):
                given, breaks = given + 1, 0
                yield taken.batch(settings)
            return
        except Unreachable as error:
            broken = error


def _find(settings: SocketSettings, request: ReadRequest, broken: str = "") -> ProcessAddress:
    """Returns the address of the receiver, which is started if the coordinator wants it."""
    for attempt in range(2):
        with _called(request, {"find": request.name, "broken": broken}) as answer:
            if "receiver" in answer:
                return ProcessAddress(*answer["receiver"])
            if attempt:
                break
            # No other task starts one while the channel is open.
            try:
                failed = receiver.start(settings, request)
            except (OSError, subprocess.SubprocessError) as error:
                raise omq.StateError(f"the receiver process cannot be started: {error}") from None
            if failed:
                raise _error(failed)
    raise omq.StateError("the receiver process has ended at its start")


@contextlib.contextmanager
def _called(request: ReadRequest, asked: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Calls the coordinator; the network to it may break for a moment. The channel stays open meanwhile."""
    deadline = time.monotonic() + UNREACHABLE_TIMEOUT_S
    with contextlib.ExitStack() as stack:
        while True:
            try:
                channel = stack.enter_context(contextlib.closing(connect(request.coordinator, request.secret)))
                answer = channel.call(asked)
                break
            except (OSError, EOFError, Unreachable) as error:
                if getattr(error, "refused", False) or time.monotonic() > deadline:
                    raise omq.StateError(
                        "the stream's coordinator, next to the driver, cannot be reached from this executor: the query"
                        " has ended; or SPARK_LOCAL_IP on the driver has to name the address that it listens on:"
                        f" {error}"
                    ) from None
                sleep(RETRY_DELAY_S)
        yield answer


def _taken(request: ReadRequest, address: ProcessAddress, given: int) -> Iterator[MessageBatch]:
    """Yields what the receiver has of the microbatch, without the first that were given before.

    Raises:
        Unreachable: The connection to it has broken, or it has no coordinator now.
        OmqError: The microbatch has failed.
    """
    with contextlib.closing(connect(address, request.secret)) as channel:
        asked = {"read": request.microbatch, "after": request.after, "drains": request.drains, "given": given}
        try:
            channel.sock.settimeout(IDLE_TIMEOUT_S)
            channel.send(asked)
            while True:
                found, attached, descriptors = channel.receive()
                if "first" in found:
                    yield _decoded(found, attached, descriptors)
                elif "waits" not in found:
                    break
        except (OSError, EOFError) as error:
            raise Unreachable(f"the connection has broken: {error}") from error
    if "error" in found:
        raise _error(found)


def _decoded(found: dict[str, Any], attached: list[bytearray], descriptors: list[int]) -> MessageBatch:
    """Returns what the receiver has sent, or has in memory that it shares."""
    runs, *memory = attached
    numbers = array("q", bytes(runs))
    told = found["endpoint"], found["first"], list(zip(numbers[::2], numbers[1::2], strict=True))
    if "block" not in found:
        return MessageBatch(*told, *map(pa.py_buffer, memory))
    if not descriptors:
        # The kernel leaves out what does not fit into our table.
        raise omq.StateError("the receiver's memory cannot be mapped: no descriptor is left here (ulimit -n)")
    try:
        return MessageBatch.in_block(*told, mapped(descriptors[0], found["block"]), found["size"])
    except OSError as error:
        # This task lacks something, and the receiver is well: another attempt gets the same.
        raise omq.StateError(f"the receiver's memory cannot be mapped: {error}") from error


_ERRORS = {name: one for name, one in vars(omq).items() if isinstance(one, type) and issubclass(one, omq.OmqError)}


def _error(found: dict[str, Any]) -> Exception:
    """Returns the error that another process reports."""
    kind = _ERRORS.get(found["kind"], omq.OmqError)
    try:
        return kind(found["error"])
    except TypeError:
        return omq.OmqError(found["error"])
