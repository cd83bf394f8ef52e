"""Any option with any value: it is taken as one that fits, or refused by its name, and nothing else ever happens."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omq.errors import OptionError
from omq.options import Options
from omq.types import SocketType
from tests.support.hypothesis_profiles import examples

FIELDS = [field.name for field in dataclasses.fields(Options)]

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-2, 70_000)
    | st.floats()
    | st.text(max_size=300)
    | st.binary(max_size=300)
    | st.complex_numbers()
    | st.builds(object)
    | st.sampled_from([int, len, SocketType.PUB, ...])
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.frozensets(st.integers() | st.text() | st.binary(), max_size=4)
        | st.dictionaries(st.text(), inner, max_size=3)
    ),
    max_leaves=6,
)


T = SocketType


@pytest.mark.parametrize("kind", [T.XPUB, T.ROUTER, T.SUB, T.REQ, T.PEER, T.RADIO, T.DISH, T.STREAM])
@examples(40)
@given(name=st.sampled_from(FIELDS), value=values)
def test_any_value_is_taken_or_refused_by_name(kind: SocketType, name: str, value: object) -> None:
    refusal = ""
    try:
        taken = Options.parse(kind, {name: value})
    except OptionError as error:
        refusal = str(error)
    if refusal:
        assert name in refusal
    else:
        # What was taken is one of the option's own values: it is taken again.
        again = Options.parse(kind, {name: getattr(taken, name)})
        assert getattr(again, name) == getattr(taken, name)


@given(name=st.text(max_size=300).filter(lambda name: name not in FIELDS), value=scalars)
def test_any_other_name_is_refused(name: str, value: object) -> None:
    with pytest.raises(OptionError):
        Options.parse(SocketType.PUSH, {name: value})
