"""The log of a server program."""

import logging
import sys


def log_to_stderr(level: str) -> None:
    """Logs records of *level* (`debug` to `error`) and above to standard error."""
    logging.basicConfig(
        stream=sys.stderr, level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
