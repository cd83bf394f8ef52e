"""Options that only the blocking twin has."""

import pytest

import omq.asyncio as omq


def test_spinning_is_refused_not_ignored() -> None:
    with pytest.raises(omq.OptionError, match="busy_poll"):
        omq.PULL(busy_poll=0.001)
    pull = omq.PULL()
    with pytest.raises(omq.OptionError, match="busy_poll"):
        pull.set_options(busy_poll="adaptive")
    pull.stop()
