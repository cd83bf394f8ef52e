"""The tree of exceptions is what docs and `except` clauses rely on."""

import inspect
import pickle

import pytest

from omq import errors
from omq.errors import OmqError

TREE = {
    "OmqError": (Exception,),
    "UsageError": (OmqError, ValueError),
    "OptionError": (errors.UsageError,),
    "AlreadyConnected": (errors.OptionError,),
    "EndpointError": (errors.UsageError,),
    "StateError": (errors.UsageError,),
    "MultipartError": (errors.UsageError,),
    "MessageTooLarge": (errors.UsageError,),
    "ClosedError": (OmqError,),
    "ContextTerminated": (errors.ClosedError,),
    "UnroutableError": (OmqError,),
    "Timeout": (OmqError, TimeoutError),
    "SendTimeout": (errors.Timeout,),
    "ReceiveTimeout": (errors.Timeout,),
    "TransportError": (OmqError, OSError),
    "BindError": (errors.TransportError,),
    "ConnectError": (errors.TransportError,),
    "ProtocolError": (OmqError,),
    "LocalProtocolError": (errors.ProtocolError,),
    "RemoteProtocolError": (errors.ProtocolError,),
    "HandshakeError": (OmqError,),
    "MechanismError": (errors.HandshakeError,),
    "HandshakeTimeout": (errors.HandshakeError, TimeoutError),
    "AuthenticationError": (errors.HandshakeError,),
}


def test_the_tree_is_complete() -> None:
    defined = {name for name, value in vars(errors).items() if inspect.isclass(value)}
    assert defined == set(TREE)


@pytest.mark.parametrize("name", TREE)
def test_bases(name: str) -> None:
    assert getattr(errors, name).__bases__ == TREE[name]


@pytest.mark.parametrize("name", TREE)
def test_is_an_omq_error_with_a_message_and_a_docstring(name: str) -> None:
    kind = getattr(errors, name)
    assert issubclass(kind, OmqError)
    assert str(kind("what went wrong")) == "what went wrong"
    assert (inspect.getdoc(kind) or "").endswith(".")


@pytest.mark.parametrize("name", TREE)
def test_survives_pickling(name: str) -> None:
    kind = getattr(errors, name)
    copy = pickle.loads(pickle.dumps(kind("what went wrong")))
    assert type(copy) is kind
    assert str(copy) == "what went wrong"


@pytest.mark.parametrize("kind", [errors.SendTimeout, errors.ReceiveTimeout])
def test_a_timeout_is_caught_as_the_built_in(kind: type[errors.Timeout]) -> None:
    with pytest.raises(TimeoutError):
        raise kind("0.1 s have passed")


@pytest.mark.parametrize("kind", [errors.BindError, errors.ConnectError])
def test_a_transport_error_carries_errno(kind: type[errors.TransportError]) -> None:
    error = kind(98, "Address already in use")
    assert error.errno == 98
    assert error.strerror == "Address already in use"


def test_each_error_has_one_category() -> None:
    blames = [
        errors.UsageError,
        errors.ClosedError,
        errors.UnroutableError,
        errors.Timeout,
        errors.TransportError,
        errors.ProtocolError,
        errors.HandshakeError,
    ]
    for name in TREE:
        kind = getattr(errors, name)
        assert sum(issubclass(kind, blame) for blame in blames) == (kind is not OmqError), name
