"""Sets the number of hypothesis' examples: few in `make test` (`short`), many in `make test-all` (`long`)."""

from __future__ import annotations

from typing import Any

from hypothesis import settings

USUAL = 100  # examples of a test that asks for no number, between those of the two profiles

# Without a deadline: on a loaded machine any example may take long.
settings.register_profile("short", max_examples=USUAL // 2, deadline=None)
settings.register_profile("long", max_examples=10 * USUAL, deadline=None)
settings.load_profile("short")


def examples(count: int, **more: Any) -> settings:
    """Settings for a number of examples, or more of them if the profile demands it.

    Args:
        count: Twice the examples of `make test`, and a tenth of those of `make test-all`.
        more: Further settings.
    """
    return settings(max_examples=max(1, count * settings().max_examples // USUAL), **more)
