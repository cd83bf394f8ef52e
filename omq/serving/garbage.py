"""The garbage collector of a process that only serves."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

#: The threshold of the young generation, in objects. Messages are objects that their reference counts free; at Python's
#: 700 the collector traverses most of them twice before that, which took a seventh of all time.
YOUNG_OBJECTS: Final = 20_000


@contextmanager
def collector_spared() -> Iterator[None]:
    """Freezes the objects that are made in here, and raises the threshold of the young generation afterwards."""
    gc.disable()  # with 100,000 topics a third of a start went into traversing those that were there already
    try:
        yield
    finally:
        gc.enable()
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])
