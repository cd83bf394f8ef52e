"""`omq gobyd`: serves the manager and the router of a Goby bus until a signal stops it."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from omq.cli.errors import errors_of_command
from omq.cli.examples import ExampleCommand
from omq.cli.parameters import FILE, LEVELS, FiniteFloat, NonEmptyPath, log_format_option, read_ready_file
from omq.serving.descriptors import raise_descriptor_limit
from omq.serving.log import log_to_stderr
from omq.serving.run import run_server

if TYPE_CHECKING:
    from omq.goby.daemon import Daemon

LOG: Final = logging.getLogger("omq.goby")
#: Options whose names differ from their arguments.
OPTIONS: Final = {"port": "--tcp-port", "required_clients": "--required-client"}

EXAMPLE: Final = """\
omq gobyd --platform demo --transport tcp --bind-address 127.0.0.1 --tcp-port 5555 --health-interval 1 &
gobyd=$!
omq goby sniff --platform demo --transport tcp --tcp-port 5555 --count 1
kill $gobyd"""


class DaemonServer:
    """The server of `run_server`: it starts and stops a daemon, whose own threads serve.

    Args:
        daemon: The daemon.
    """

    def __init__(self, daemon: Daemon) -> None:
        self.endpoints = daemon.endpoints
        self._daemon = daemon

    async def start(self) -> None:
        """Starts the daemon. A terminate request on the bus cancels this task, like a signal."""
        task = asyncio.current_task()
        assert task is not None
        self._daemon.on_terminate = partial(asyncio.get_running_loop().call_soon_threadsafe, task.cancel)
        self._daemon.start(ready=False)

    async def close(self) -> None:
        """Stops the daemon."""
        self._daemon.close()


def verbosity(daemon_config: Any) -> str:
    """Returns the log level of a configuration."""
    glog = daemon_config.app.glog_config
    if not glog.HasField("tty_verbosity"):
        return "info"
    return {1: "error", 2: "warning", 4: "info"}.get(glog.tty_verbosity, "debug")


@click.command(cls=ExampleCommand, example=EXAMPLE)
@click.option("--platform", help="The platform's name.  [default: default_goby_platform]")
@click.option("--transport", type=click.Choice(["ipc", "tcp"]), help="How clients connect.  [default: ipc]")
@click.option(
    "--socket-name",
    type=NonEmptyPath(),
    help="ipc: the prefix of the sockets' paths.  [default: /tmp/goby_ and the platform]",
)
@click.option(
    "--tcp-port",
    type=click.IntRange(0, 65535),
    help="tcp: the manager's port; 0: any free port.  [default: 11144]",
)
@click.option("--bind-address", default="*", show_default=True, help="tcp: the address to listen on; *: all.")
@click.option(
    "--required-client",
    multiple=True,
    metavar="NAME",
    help="A client that must be ready before any client publishes; may be repeated.",
)
@click.option(
    "--config",
    type=FILE,
    help="A GobyDaemonConfig as text protobuf, or as TOML with the same names (*.toml). Options override it.",
)
@click.option(
    "--health-interval",
    type=FiniteFloat(0),
    default=10.0,
    show_default=True,
    help="Seconds between two health requests to all processes; 0: never.",
)
@click.option(
    "--ready-file",
    type=NonEmptyPath(dir_okay=False, path_type=Path),
    callback=read_ready_file,
    help="Written once the daemon serves: its endpoints (manager, publish, subscribe) as JSON.",
)
@click.option("--log-level", type=click.Choice(LEVELS), help="[default: info, or the configuration's]")
@log_format_option
def gobyd(
    platform: str | None,
    transport: str | None,
    socket_name: str | None,
    tcp_port: int | None,
    bind_address: str,
    required_client: tuple[str, ...],
    config: Path | None,
    health_interval: float,
    ready_file: Path | None,
    log_level: str | None,
    log_format: str,
) -> None:
    """Run the daemon of a Goby bus. It sends its endpoints to clients, holds them until all required clients are ready,
    and forwards their publications.

    It works with processes written for Goby 3. It logs to standard error. SIGTERM, SIGINT or a terminate request on the
    bus stops it in an orderly way.
    """
    with errors_of_command("omq.goby", "goby", OPTIONS):
        from omq.goby.config import read_gobyd
        from omq.goby.daemon import Daemon
        from omq.goby.protobuf import GobyDaemonConfig

        file_config = GobyDaemonConfig() if config is None else read_gobyd(config)
        log_to_stderr(log_level or verbosity(file_config), log_format)
        raise_descriptor_limit(LOG)
        daemon = Daemon(
            platform=platform,
            transport=transport,
            socket_name=socket_name,
            port=tcp_port,
            required_clients=required_client,
            config=file_config,
            host=bind_address,
            health_interval=health_interval or None,
        )
        run_server(DaemonServer(daemon), LOG, ready_file=ready_file, on_start=daemon.ready)
