"""`zmq` for gevent: a call that waits lets other greenlets run."""

from __future__ import annotations

import omq.zmq as _zmq
from omq.zmq import *  # noqa: F403
from omq.zmq.green.core import _Context, _Socket
from omq.zmq.green.poll import _Poller

Context = _Context  # type: ignore[misc]
Socket = _Socket  # type: ignore[misc]
Poller = _Poller  # type: ignore[misc]

from omq.zmq.green.device import device as device  # type: ignore[assignment]  # noqa: E402

__all__ = list(_zmq.__all__)
