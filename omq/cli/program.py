"""The program `omq`. Importing a command takes most of the time until it starts, so signals are set before that."""

import signal
import sys


def run() -> None:
    """Runs the command. SIGINT ends the process silently, also before the command has begun and after its end."""
    is_ignored = signal.getsignal(signal.SIGINT) is not signal.default_int_handler  # as of `nohup`
    if not is_ignored:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from omq.cli.main import INTERRUPTED, main  # it sets the handler of Python once the command is imported

    try:
        main(prog_name="omq")
    except SystemExit as end:
        if end.code != INTERRUPTED:
            raise
        # The process ends by the signal, so that a loop of a shell ends, too.
        sys.excepthook = lambda *_: None
        raise KeyboardInterrupt from None
    finally:
        if not is_ignored:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
