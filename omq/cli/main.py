"""`omq`: the command line of the package. Each command has a module of its own, or a folder with its `command.py`."""

import signal
from difflib import get_close_matches
from importlib import import_module
from typing import Any, Final

from omq.serving.extras import missing_extra

try:
    import click
    import rich  # noqa: F401 - checked here, for all commands
    from click.shell_completion import CompletionItem
except ImportError as missing:
    raise SystemExit(f"omq: {missing_extra('the command', missing, 'cli')}") from None

from omq._version import __version__
from omq.cli.sockets.table import SOCKETS

#: The commands with the first sentence of their help, by section.
SECTIONS: Final[dict[str, dict[str, str]]] = {
    "Sockets": {name: row.text for name, row in SOCKETS.items()},
    "Tools": {
        "bench": "Measure blocking sockets between two processes of this machine, next to pyzmq if it is installed.",
        "completion": "Print the script that completes commands and options of omq in a SHELL.",
        "keygen": "Write a new CURVE key pair: FILE for the public key, and FILE_secret for the secret one.",
        "monitor": "Open a socket of a TYPE, such as pull, and print the events of its connections until SIGINT or "
        "SIGTERM.",
        "ping": "Measure round trips to a REP socket at ENDPOINT that replies to everything.",
        "proxy": "Forward messages between two sockets of the types FRONTEND and BACKEND, such as xsub and xpub, until "
        "a signal.",
        "record": "Write the messages of a feed to FILE with the time of each, until SIGINT or SIGTERM.",
        "replay": "Send the messages of FILE, which `omq record` has written, with the times between them.",
        "sniff": "Print the ZMTP traffic in FILE, a pcap or pcapng capture, such as of tcpdump or Wireshark.",
        "top": "Show the traffic of the sockets, topics and devices of processes that export metrics at each ENDPOINT.",
    },
    "Servers": {
        "broker": "Serve topics that persist, replay, and lose nothing that was acknowledged.",
        "gobyd": "Run the daemon of a Goby bus.",
        "ingest": "Publish the messages of ordinary ZeroMQ peers to a topic of omq broker.",
        "pzq": "Store messages of producers until a consumer has acknowledged them.",
    },
    "Administration": {
        "consumer": "Administer the durable subscriptions and consumer groups of a running broker.",
        "durable": "Administer the durable subscriptions of a running broker.",
        "goby": "Record, replay and watch a Goby bus (`omq gobyd`, or Goby's own).",
        "group": "Administer the consumer groups of a running broker.",
        "store": "Inspect or compact a broker's directory while no broker uses it.",
        "topic": "Administer the topics of a running broker, publish to them and read them.",
    },
}
INTERRUPTED: Final = 128 + signal.SIGINT  # the exit status of an interrupted command, as a shell has it
COMMANDS: Final = {name: text for section in SECTIONS.values() for name, text in section.items()}


class LazyGroup(click.Group):
    """Imports a command when it is asked for: all of them together take ten times the time of one."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        if cmd_name in SOCKETS:
            from omq.cli.sockets.command import socket_command

            return socket_command(cmd_name)
        module = import_module(f"omq.cli.{cmd_name}")
        if hasattr(module, "__path__"):
            module = import_module(f"omq.cli.{cmd_name}.command")
        command = getattr(module, cmd_name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        close = [] if args[0] in COMMANDS or args[0].startswith("-") else get_close_matches(args[0], COMMANDS)
        if close:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {' or '.join(map(repr, close))}?")
        found = super().resolve_command(ctx, args)
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # `omq.cli.program` has set it for the imports
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return found

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise click.exceptions.Exit(INTERRUPTED) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for section, commands in SECTIONS.items():
            with formatter.section(section):
                formatter.write_dl([(name, text.removesuffix(".")) for name, text in commands.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        names = [CompletionItem(name, help=text) for name, text in COMMANDS.items() if name.startswith(incomplete)]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="omq", message="%(prog)s %(version)s")
def main() -> None:
    """ZeroMQ for Python without libzmq."""


if __name__ == "__main__":
    main()
