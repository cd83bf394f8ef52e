"""pyzmq's interface on omq: `import omq.zmq as zmq`, and the rest of the program stays as it is."""

from __future__ import annotations

from pathlib import Path

from omq._core.zmq.calls import configure as _configure
from omq.zmq import constants as constants
from omq.zmq import error as error
from omq.zmq.constants import *  # noqa: F403
from omq.zmq.context import Context, SyncContext
from omq.zmq.endpoint_errors import IPC_PATH_MAX_LEN
from omq.zmq.error import (
    Again,
    ContextTerminated,
    DraftFDWarning,
    InterruptedSystemCall,
    NotDone,
    ZMQBaseError,
    ZMQBindError,
    ZMQError,
    ZMQVersionError,
    error_of,
    strerror,
    translate,
    zmq_errno,
)
from omq.zmq.frame import COPY_THRESHOLD, Frame, Message
from omq.zmq.poll import Poller, select, zmq_poll
from omq.zmq.proxies import device, proxy, proxy_steerable
from omq.zmq.security import curve_keypair, curve_public, has
from omq.zmq.socket import Socket, SyncSocket
from omq.zmq.stopwatch import Stopwatch
from omq.zmq.tracker import _FINISHED_TRACKER, MessageTracker, Release
from omq.zmq.version import (
    __revision__,
    __version__,
    pyzmq_version,
    pyzmq_version_info,
    zmq_version,
    zmq_version_info,
)

_configure(Frame, Release, MessageTracker, _FINISHED_TRACKER, error_of, translate)

#: Whether the newer socket types are there.
DRAFT_API: bool = True
PYZMQ_DRAFT_API: bool = True

from omq.zmq import backend as backend  # noqa: E402
from omq.zmq import sugar as sugar  # noqa: E402
from omq.zmq.utils import interop as _interop  # noqa: E402, F401 - programs use it without importing it


def install() -> None:
    """Makes `import zmq` and `import zmq.NAME` find the modules of `omq.zmq`, from now on.

    Raises:
        ImportError: pyzmq is imported already; the error names the modules that use it.
    """
    from omq.zmq import import_hook  # what it needs takes a tenth of the time of this import

    import_hook.install()


def get_includes() -> list[str]:
    """Returns the folders in which pyzmq has headers; here they have none."""
    return [str(Path(__file__).parents[1]), str(Path(__file__).parent / "utils")]


def get_library_dirs() -> list[str]:
    """Returns the folder in which pyzmq has libzmq; here it has none."""
    return [str(Path(__file__).parent)]


__all__ = [
    "Again",
    "COPY_THRESHOLD",
    "Context",
    "ContextTerminated",
    "DRAFT_API",
    "DraftFDWarning",
    "Frame",
    "IPC_PATH_MAX_LEN",
    "InterruptedSystemCall",
    "Message",
    "MessageTracker",
    "NotDone",
    "PYZMQ_DRAFT_API",
    "Poller",
    "Socket",
    "Stopwatch",
    "SyncContext",
    "SyncSocket",
    "ZMQBaseError",
    "ZMQBindError",
    "ZMQError",
    "ZMQVersionError",
    "_FINISHED_TRACKER",
    "__revision__",
    "__version__",
    "curve_keypair",
    "curve_public",
    "device",
    "get_includes",
    "has",
    "proxy",
    "proxy_steerable",
    "pyzmq_version",
    "pyzmq_version_info",
    "select",
    "strerror",
    "zmq_errno",
    "zmq_poll",
    "zmq_version",
    "zmq_version_info",
    *constants.__all__,
]
