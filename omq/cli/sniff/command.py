"""`omq sniff`: prints the ZMTP traffic of a capture file."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import click

from omq.cli.errors import echo, errors_of_command
from omq.cli.examples import ExampleCommand
from omq.cli.parameters import FILE, sigterm_interrupts
from omq.cli.sniff.tcp_streams import Segment, StreamAssembler, segments_of
from omq.cli.sniff.zmtp_decoder import ZmtpDecoder, ZmtpItem
from omq.cli.sockets.formats import json_part, quote
from omq.cli.sockets.options import note

EXAMPLE: Final = "omq sniff capture.pcap"
PREVIEW_BYTES: Final = 64  # of a part


class Direction:
    """One direction of a connection.

    Attributes:
        assembler: Puts its segments into order.
        decoder: Decodes its bytes.
    """

    def __init__(self) -> None:
        self.assembler = StreamAssembler()
        self.decoder = ZmtpDecoder()

    def problem(self) -> str:
        """Returns why not everything was decoded; empty if it was, or if it is not ZMTP."""
        if self.decoder.is_zmtp and self.assembler.waiting:
            return f"the capture lacks bytes; {self.assembler.waiting} bytes after them are not decoded"
        if self.decoder.is_zmtp and self.decoder.pending:
            return f"the capture ends in the middle of a frame, after {self.decoder.pending} bytes"
        return ""


def row_of(segment: Segment, item: ZmtpItem) -> dict[str, Any]:
    """Returns an item as a JSON object."""
    row: dict[str, Any] = {
        "time": segment.time,
        "source": segment.source,
        "target": segment.target,
        "kind": item.kind,
        **({"name": item.name} if item.name else {}),
        **item.values,
    }
    if item.kind == "message":
        row["parts"] = [json_part(part) for part in item.parts]
    elif item.kind == "encrypted":
        row["size"] = item.size
    return row


def line_of(segment: Segment, item: ZmtpItem, full: bool) -> str:
    """Returns an item as a line."""
    time = datetime.fromtimestamp(segment.time).strftime("%H:%M:%S.%f")
    values = " ".join(f"{name}={quote(value.encode()).decode()}" for name, value in item.values.items())
    match item.kind:
        case "message":
            parts = (part if full else part[:PREVIEW_BYTES] for part in item.parts)
            text = "\t".join(quote(part).decode() for part in parts)
            cut = "" if full or max(map(len, item.parts)) <= PREVIEW_BYTES else " ..."
            count = "" if len(item.parts) == 1 else f"{len(item.parts)} parts, "
            values = f"{count}{item.size} bytes: {text}{cut}"
        case "encrypted":
            values = f"message, {item.size} bytes"
    return f"{time} {segment.source} > {segment.target} {item.name or item.kind} {values}".rstrip()


@click.command(cls=ExampleCommand, example=EXAMPLE)
@click.argument("file", type=FILE)
@click.option(
    "--port",
    "ports",
    type=click.IntRange(1, 65535),
    multiple=True,
    metavar="N",
    help="Only these ports; may be repeated.",
)
@click.option("--full", is_flag=True, help="Print parts whole; otherwise their first 64 bytes.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line, with whole parts.")
@click.option("-q", "--quiet", is_flag=True, help="Do not report the rest of the traffic on standard error.")
def sniff(file: Path, ports: tuple[int, ...], full: bool, as_json: bool, quiet: bool) -> None:
    """Print the ZMTP traffic in FILE, a pcap or pcapng capture, such as of tcpdump or Wireshark.

    Greetings, commands and messages of ZMTP 3 over TCP are decoded. Messages of CURVE are encrypted: their sizes are
    printed. Connections that began before the capture are not decoded.
    """
    directions: dict[tuple[str, str], Direction] = {}
    finished: list[tuple[tuple[str, str], Direction]] = []
    with errors_of_command("the command", "sniff"), sigterm_interrupts():
        for segment in segments_of(file):
            if ports and not set(ports) & set(segment.ports):
                continue
            key = segment.source, segment.target
            if segment.starts and key in directions and directions[key].decoder.is_zmtp:
                finished.append((key, directions.pop(key)))  # the ports are used again
            direction = directions.setdefault(key, Direction())
            for item in direction.decoder.feed(direction.assembler.add(segment)):
                row = json.dumps(row_of(segment, item), ensure_ascii=False) if as_json else line_of(segment, item, full)
                echo(row)
        finished += directions.items()
        if not quiet:
            report(finished)


def report(directions: list[tuple[tuple[str, str], Direction]]) -> None:
    """Reports what was not decoded."""
    for (source, target), direction in directions:
        if problem := direction.problem():
            note(f"{source} > {target}: {problem}")
    others = [one for _, one in directions if not one.decoder.is_zmtp and (one.decoder.ended or one.decoder.pending)]
    late = sum(not one.assembler.from_start for one in others)
    if others:
        note(
            f"{len(others)} directions of TCP connections are not decoded: {len(others) - late} are not ZMTP 3, "
            f"{late} began before the capture"
        )
