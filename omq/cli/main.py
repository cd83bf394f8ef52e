"""`omq`: the command line of the package. Each command has a module of its own."""

from importlib import import_module

from omq.serving.extras import missing_extra

try:
    import click
    import rich  # noqa: F401 - checked here, for all commands
except ImportError as missing:
    raise SystemExit(f"omq: {missing_extra('the command', missing, 'cli')}") from None

from omq._version import __version__

COMMANDS = ("broker", "durable", "goby", "gobyd", "group", "ingest", "pzq", "store", "topic")


class LazyGroup(click.Group):
    """Imports a command when it is asked for: all of them together take twice the time of one."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = getattr(import_module(f"omq.cli.{cmd_name}"), cmd_name)
        assert isinstance(command, click.Command)
        return command


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="omq", message="%(prog)s %(version)s")
def main() -> None:
    """ZeroMQ for Python without libzmq."""


if __name__ == "__main__":
    main()
