"""The task's side of a read: finds the receiver of a partition, and reads a microbatch from it."""

from __future__ import annotations

import contextlib
import logging
import time
from array import array
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

import omq
from omq.spark.buffer_pool import map_block
from omq.spark.live import receiver
from omq.spark.live.columns import MessageBatch
from omq.spark.live.receiver import ReadRequest
from omq.spark.live.rpc import IDLE_TIMEOUT_S, ProcessAddress, Unreachable, connect
from omq.spark.live.settings import SocketSettings
from omq.unpatched import sleep, subprocess

log = logging.getLogger("omq.spark")

COORDINATOR_TIMEOUT_S: Final = 20.0  # for the network to the coordinator
RETRY_DELAY_S: Final = 0.2
MAX_RECONNECTS: Final = 3  # to the receiver, without a batch in between


def read(settings: SocketSettings, request: ReadRequest) -> Iterator[pa.RecordBatch]:
    """Yields the rows of one microbatch of one partition.

    Raises:
        OmqError: The receiver fails, or cannot be started.
    """
    process, received, reconnects = "", 0, 0
    broken: Exception | None = None
    while True:
        address = _find(settings, request, process if broken else "")
        if address.name != process and received:
            # Spark has the first rows of the microbatch, and the new receiver does not have the others.
            text = f"{request.endpoint}: the receiver has died during a microbatch"
            if settings.fail_on_data_loss:
                raise omq.StateError(f"{text} (failOnDataLoss=true)")
            log.warning("%s; the messages that it had are lost", text)
            return
        if address.name == process and broken:
            reconnects += 1
            if reconnects > MAX_RECONNECTS:
                where = ", ".join(address.addresses)
                raise omq.StateError(
                    f"{request.endpoint}: the receiver (on {where}, port {address.port}) cannot be reached from this"
                    f" executor: {broken}"
                )
            sleep(RETRY_DELAY_S)
        process, broken = address.name, None
        try:
            for batch in _batches(request, address, received):
                received, reconnects = received + 1, 0
                yield batch.record_batch(settings)
            return
        except Unreachable as error:
            broken = error


def _find(settings: SocketSettings, request: ReadRequest, broken: str = "") -> ProcessAddress:
    """Returns the address of the receiver; starts it if the coordinator asks for that."""
    for attempt in range(2):
        with _call_coordinator(request, {"find": request.name, "broken": broken}) as answer:
            if "receiver" in answer:
                return ProcessAddress(*answer["receiver"])
            if attempt:
                break
            # No other task starts one while the channel is open.
            try:
                failed = receiver.start(settings, request)
            except (OSError, subprocess.SubprocessError) as error:
                raise omq.StateError(f"{request.endpoint}: the receiver process cannot be started: {error}") from None
            if failed:
                raise _error(failed)
    raise omq.StateError(f"{request.endpoint}: the receiver process has ended at its start; see its standard error")


@contextlib.contextmanager
def _call_coordinator(request: ReadRequest, message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Returns the coordinator's answer, and keeps the channel open during the context."""
    deadline = time.monotonic() + COORDINATOR_TIMEOUT_S
    with contextlib.ExitStack() as stack:
        while True:
            try:
                channel = stack.enter_context(contextlib.closing(connect(request.coordinator, request.secret)))
                answer = channel.call(message)
                break
            except (OSError, EOFError, Unreachable) as error:
                if getattr(error, "refused", False) or time.monotonic() > deadline:
                    raise omq.StateError(
                        f"{request.endpoint}: the stream's coordinator, on the driver's host, cannot be reached"
                        " from this executor. Either the query has ended, or SPARK_LOCAL_IP must be set in the driver's"
                        f" environment, to an address that executors can reach: {error}"
                    ) from None
                sleep(RETRY_DELAY_S)
        yield answer


def _batches(request: ReadRequest, address: ProcessAddress, received: int) -> Iterator[MessageBatch]:
    """Yields the batches of the microbatch after the first *received* ones.

    Raises:
        Unreachable: The connection to the receiver has broken, or the receiver is not registered.
        OmqError: The microbatch has failed.
    """
    with contextlib.closing(connect(address, request.secret)) as channel:
        message = {
            "read": request.microbatch,
            "after": request.after,
            "available_now": request.available_now,
            "skip": received,
        }
        try:
            channel.sock.settimeout(IDLE_TIMEOUT_S)
            channel.send(message)
            while True:
                answer, attached, descriptors = channel.receive()
                if "first" in answer:
                    yield _decode(answer, attached, descriptors)
                elif "heartbeat" not in answer:
                    break
        except (OSError, EOFError) as error:
            raise Unreachable(f"the connection has broken: {error}") from error
    if "error" in answer:
        raise _error(answer)


def _decode(answer: dict[str, Any], attached: list[bytearray], descriptors: list[int]) -> MessageBatch:
    """Returns the batch of an answer, from its bytes or from the receiver's shared memory."""
    runs, *memory = attached
    numbers = array("q", bytes(runs))
    head = answer["endpoint"], answer["first"], list(zip(numbers[::2], numbers[1::2], strict=True))
    if "block" not in answer:
        return MessageBatch(*head, *map(pa.py_buffer, memory))
    if not descriptors:
        # The kernel drops a descriptor for which this process has no room.
        raise omq.StateError(
            "the receiver's memory cannot be mapped: no descriptor is left in this worker; raise the limit (ulimit -n)"
        )
    try:
        return MessageBatch.in_block(*head, map_block(descriptors[0], answer["block"]), answer["size"])
    except OSError as error:
        # The cause is in this process, so another attempt can succeed with the same receiver.
        raise omq.StateError(f"the receiver's memory cannot be mapped: {error}") from error


_ERRORS = {name: one for name, one in vars(omq).items() if isinstance(one, type) and issubclass(one, omq.OmqError)}


def _error(report: dict[str, Any]) -> Exception:
    """Returns the error that another process reports."""
    kind = _ERRORS.get(report["kind"], omq.OmqError)
    try:
        return kind(report["error"])
    except TypeError:
        return omq.OmqError(report["error"])
