"""The socket types as commands, one row for each."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from omq.types import SocketType


class Flow(Enum):
    """The task of a command."""

    SEND = "send"  # its input
    RECEIVE = "receive"  # and print
    REQUEST = "request"  # sends a message, and prints the reply before the next one
    REPLY = "reply"  # prints a request, and sends the reply before the next one
    BOTH = "both"  # sends its input and prints what it receives, independently


@dataclass(frozen=True)
class SocketRow:
    """A socket type as a command.

    Attributes:
        socket_type: The type.
        role: The task of its command.
        text: The first sentence of its help.
        example: The lines of its example.
        first_part: The meaning of the first part in input and output, where that is not a part of the message, or
            addresses a peer; empty otherwise.
    """

    socket_type: SocketType
    role: Flow
    text: str
    example: str
    first_part: str = ""


_E: Final = "tcp://127.0.0.1:5555"

ROWS: Final = (
    SocketRow(
        SocketType.PUSH,
        Flow.SEND,
        "Send messages, each to one of the connected PULL sockets.",
        f"omq pull -b {_E} -n 2 &\nprintf 'one\\ntwo\\n' | omq push -c {_E}",
    ),
    SocketRow(
        SocketType.PULL,
        Flow.RECEIVE,
        "Print the messages of PUSH sockets.",
        f"omq push -b {_E} -D hello &\nomq pull -c {_E} -n 1",
    ),
    SocketRow(
        SocketType.PUB,
        Flow.SEND,
        "Send messages to all SUB sockets that have subscribed to them.",
        f"omq sub -c {_E} -s AAPL -n 3 &\nomq pub -b {_E} -D 'AAPL 189.95' -i 0.1 -n 3",
    ),
    SocketRow(
        SocketType.SUB,
        Flow.RECEIVE,
        "Print the messages of PUB sockets that begin with a prefix.",
        f"omq pub -b {_E} -D 'AAPL 189.95' &\nomq sub -c {_E} -s AAPL -n 1",
    ),
    SocketRow(
        SocketType.REQ,
        Flow.REQUEST,
        "Send requests, and print the reply to each.",
        f"omq rep -b {_E} -D pong -n 1 &\nomq req -c {_E} -D ping",
    ),
    SocketRow(
        SocketType.REP,
        Flow.REPLY,
        "Print requests, and reply to each.",
        f"omq rep -b {_E} --exec 'tr a-z A-Z' -n 1 &\nomq req -c {_E} -D hello",
    ),
    SocketRow(
        SocketType.DEALER,
        Flow.BOTH,
        "Send messages to the peers in turn, and print what arrives.",
        f"omq router -b {_E} --echo -n 1 &\nomq dealer -c {_E} -D hello -n 1",
    ),
    SocketRow(
        SocketType.ROUTER,
        Flow.BOTH,
        "Print messages with the identity of their sender, and send to the peer that the first part names.",
        f"omq router -b {_E} --echo -n 1 &\nomq req -c {_E} --identity me -D hello",
        "the identity of the peer",
    ),
    SocketRow(
        SocketType.PAIR,
        Flow.BOTH,
        "Send messages to one peer, and print what arrives.",
        f"omq pair -b {_E} --echo -n 1 &\nomq pair -c {_E} -D hello -n 1",
    ),
    SocketRow(
        SocketType.XPUB,
        Flow.BOTH,
        "Send messages to subscribers, and print their subscriptions.",
        f"omq sub -c {_E} -s AAPL -n 1 &\nomq xpub -b {_E} -D 'AAPL 189.95' -n 1 -F quoted",
    ),
    SocketRow(
        SocketType.XSUB,
        Flow.BOTH,
        "Print the messages of publishers, and send subscriptions.",
        f"omq pub -b {_E} -D 'AAPL 189.95' &\nomq xsub -c {_E} -s AAPL -n 1",
    ),
    SocketRow(
        SocketType.STREAM,
        Flow.BOTH,
        "Print the bytes of plain TCP connections, and send to the one that the first part names.",
        f"omq stream -b {_E} --echo -n 1 &\nomq stream -c {_E} -D hello -n 1",
        "the id of the connection",
    ),
    SocketRow(
        SocketType.CLIENT,
        Flow.BOTH,
        "Send messages to SERVER sockets in turn, and print what arrives.",
        f"omq server -b {_E} --echo -n 1 &\nomq client -c {_E} -D hello -n 1",
    ),
    SocketRow(
        SocketType.SERVER,
        Flow.BOTH,
        "Print messages with the number of their sender, and send to the peer with the number in the first part.",
        f"omq server -b {_E} --echo -n 1 &\nomq client -c {_E} -D hello -n 1",
        "the routing id of the peer, a number",
    ),
    SocketRow(
        SocketType.RADIO,
        Flow.SEND,
        "Send messages to all DISH sockets that have joined their group.",
        f"omq dish -c {_E} -g weather -n 1 &\nomq radio -b {_E} -g weather -D sunny",
        "the group, without --group",
    ),
    SocketRow(
        SocketType.DISH,
        Flow.RECEIVE,
        "Print the messages of groups, with the group of each.",
        f"omq radio -b {_E} -g weather -D sunny &\nomq dish -c {_E} -g weather -n 1",
        "the group",
    ),
    SocketRow(
        SocketType.SCATTER,
        Flow.SEND,
        "Send messages of one part, each to one of the connected GATHER sockets.",
        f"omq gather -b {_E} -n 1 &\nomq scatter -c {_E} -D hello",
    ),
    SocketRow(
        SocketType.GATHER,
        Flow.RECEIVE,
        "Print the messages of SCATTER sockets.",
        f"omq scatter -b {_E} -D hello &\nomq gather -c {_E} -n 1",
    ),
    SocketRow(
        SocketType.PEER,
        Flow.BOTH,
        "Print messages with the number of their sender, and send to the peer with the number in the first part.",
        f"omq peer -b {_E} --echo -n 1 &\nomq peer -c {_E} -D hello -n 1",
        "the routing id of the peer, a number",
    ),
    SocketRow(
        SocketType.CHANNEL,
        Flow.BOTH,
        "Send messages of one part to one peer, and print what arrives.",
        f"omq channel -b {_E} --echo -n 1 &\nomq channel -c {_E} -D hello -n 1",
    ),
)

#: The rows by the names of their commands.
SOCKETS: Final = {row.socket_type.value.lower(): row for row in ROWS}
