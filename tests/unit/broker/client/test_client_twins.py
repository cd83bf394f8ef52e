"""The two clients have the same calls with the same arguments."""

import inspect

import pytest

import omq.asyncio.broker
import omq.broker

#: What is for `with` and iteration, which asyncio spells another way.
SPELLED = {"__enter__": "__aenter__", "__exit__": "__aexit__", "__iter__": "__aiter__", "__next__": "__anext__"}
#: What does not wait, and is awaited in neither.
PLAIN = {"ack", "nack", "acknowledge", "retry", "progress", "read", "read_columns"}


def calls(kind: type) -> dict[str, object]:
    """The public calls of a class, by their blocking names."""
    back = {asynchronous: blocking for blocking, asynchronous in SPELLED.items()}
    found = {
        back.get(name, name): call
        for name, call in inspect.getmembers(kind, inspect.isroutine)
        if not name.startswith("_") or name in {"__init__", *SPELLED, *back}
    }
    return {name: call for name, call in found.items() if name != "__init__" or kind.__name__ == "Client"}


@pytest.mark.parametrize("name", ["Client", "Subscription", "Consumer"])
def test_calls_and_arguments_are_the_same(name):
    blocking, asynchronous = calls(getattr(omq.broker, name)), calls(getattr(omq.asyncio.broker, name))
    assert blocking.keys() == asynchronous.keys()
    for call in blocking:
        one, other = (inspect.signature(some[call]) for some in (blocking, asynchronous))
        assert list(one.parameters.values()) == list(other.parameters.values()), call
        assert call in {"__init__", *SPELLED} or (
            inspect.getdoc(blocking[call]) and inspect.getdoc(asynchronous[call])
        ), call


@pytest.mark.parametrize("name", ["Client", "Subscription", "Consumer"])
def test_what_waits_is_awaited(name):
    for call, function in calls(getattr(omq.asyncio.broker, name)).items():
        awaited = inspect.iscoroutinefunction(function)
        assert awaited is not (call in PLAIN or call in {"__init__", "__iter__"}), call


def test_both_modules_export_the_same():
    assert set(omq.broker.__all__) == set(omq.asyncio.broker.__all__)
    assert all(hasattr(omq.asyncio.broker, name) for name in omq.asyncio.broker.__all__)
