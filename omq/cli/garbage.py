"""Python's collector of garbage, in a process that does nothing but serve."""

import gc
from typing import Final

#: Objects that are made, beyond those that go, before the young ones are looked through. Messages on their way are
#: objects that go by themselves; at Python's 700 most of them are looked at twice before, which took a seventh of all.
YOUNG: Final = 20_000


def spare_the_collector() -> None:
    """Has the collector look at what is there by now no more, and at what is new less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, *gc.get_threshold()[1:])
