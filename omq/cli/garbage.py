"""Python's collector of garbage, in a process that does nothing but serve."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

#: Objects that are made, beyond those that go, before the young ones are looked through. Messages on their way are
#: objects that go by themselves; at Python's 700 most of them are looked at twice before, which took a seventh of all.
YOUNG: Final = 20_000


@contextmanager
def collector_spared() -> Iterator[None]:
    """Has the collector never look at what is made in here, and at what is new afterwards less often."""
    gc.disable()  # with 100,000 topics a third of a start went into looks at those that were there already
    try:
        yield
    finally:
        gc.enable()
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, *gc.get_threshold()[1:])
