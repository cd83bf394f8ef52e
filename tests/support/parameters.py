"""Parametrization that runs a sample of a product in the usual run, and the rest with the slow tests."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest


def each_value_once(*fixtures: str, **values: Sequence[Any]) -> pytest.MarkDecorator:
    """Returns a parametrization over the product of some lists.

    The usual run takes as many combinations as the longest list has values, and each value occurs in one of them. The
    other combinations are marked `slow`.

    Args:
        *fixtures: The names of parameters that are fixtures: their values are the parameters of these.
        **values: The values of each parameter of the test, in the order of the test's id. A name such as
            `size__peers` stands for two parameters, and its values are pairs.
    """
    lists = [[*some] for some in values.values()]
    longest = max(map(len, lists))
    usual = {tuple(number % len(some) for some in lists) for number in range(longest)}
    names = ",".join(name.replace("__", ",") for name in values)
    found = []
    for places in product(*(range(len(some)) for some in lists)):
        chosen: list[Any] = []
        for name, some, place in zip(values, lists, places, strict=True):
            chosen += some[place] if "__" in name else [some[place]]
        found.append(pytest.param(*chosen, marks=() if places in usual else pytest.mark.slow))
    return pytest.mark.parametrize(names, found, indirect=fixtures)
