"""Decorators of `omq.zmq`."""

from __future__ import annotations

from typing import Any

import pytest

import omq.zmq as zmq
from omq.zmq.decorators import context, socket


def test_objects_are_passed_and_closed() -> None:
    @context()
    @socket(zmq.PUSH)
    @socket(zmq.PULL, name="pull")
    def work(first: int, ctx: Any, push: Any, pull: Any = None) -> tuple[Any, Any, Any]:
        assert first == 1
        assert push.context is pull.context is ctx
        assert (push.type, pull.type) == (zmq.PUSH, zmq.PULL)
        return ctx, push, pull

    assert [one.closed for one in work(1)] == [True] * 3  # type: ignore[call-arg]


def test_the_keyword_of_the_context() -> None:
    @context("mine")
    @socket("push", zmq.PUSH, context_name="mine")
    def work(mine: Any = None, push: Any = None) -> None:
        assert push.context is mine

    work()


def test_a_keyword_that_the_caller_gives_too() -> None:
    @context("ctx")
    def work(ctx: Any = None) -> None:
        raise AssertionError

    with pytest.raises(TypeError, match="multiple values for argument 'ctx'"):
        work(ctx=1)


def test_without_a_context_the_socket_has_that_of_the_process() -> None:
    @socket(zmq.PUSH)
    def work(push: Any) -> Any:
        return push.context

    try:
        assert work() is zmq.Context.instance()  # type: ignore[call-arg]
    finally:
        zmq.Context.instance().term()
