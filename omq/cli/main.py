"""`omq`: the command line of the package. Each command has a module of its own."""

from omq.serving.extras import missing_extra

try:
    import click
    import rich  # noqa: F401 - checked here, for all commands
except ImportError as missing:
    raise SystemExit(f"omq: {missing_extra('the command', missing, 'cli')}") from None

from omq._version import __version__
from omq.cli.broker import broker
from omq.cli.durable import durable
from omq.cli.goby import goby
from omq.cli.gobyd import gobyd
from omq.cli.group import group
from omq.cli.ingest import ingest
from omq.cli.pzq import pzq
from omq.cli.store import store
from omq.cli.topic import topic


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="omq", message="%(prog)s %(version)s")
def main() -> None:
    """ZeroMQ for Python without libzmq."""


main.add_command(broker)
main.add_command(durable)
main.add_command(goby)
main.add_command(gobyd)
main.add_command(group)
main.add_command(ingest)
main.add_command(pzq)
main.add_command(store)
main.add_command(topic)

if __name__ == "__main__":
    main()
