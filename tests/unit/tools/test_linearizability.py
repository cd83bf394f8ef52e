"""The check of histories: it accepts what one object could have done, and rejects everything else."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import pytest

from tests.support.linearizability import (
    NOTHING,
    Job,
    Log,
    Model,
    NotLinearizable,
    Operation,
    Prefix,
    Undecided,
    check_parts,
    linearize,
)


class Register:
    """A register: `("write", value)` and `("read",)`."""

    initial = 0

    def step(self, state: int, operation: Operation) -> int | None:
        if operation.call[0] == "write":
            return int(operation.call[1])
        return state if operation.result == state else None


def history(*rows: tuple[Any, ...]) -> list[Operation]:
    """Returns operations from rows of call, result, times of call and return; without the last it is unknown."""
    return [Operation(f"c{number}", *row) for number, row in enumerate(rows)]


def is_linearizable(model: Model[Any], operations: list[Operation]) -> bool:
    try:
        linearize(model, operations)
    except NotLinearizable:
        return False
    return True


GOOD = {
    "nothing": history(),
    "one after another": history((("write", 1), None, 0, 1), (("read",), 1, 2, 3)),
    "a read during a write, before": history((("write", 1), None, 0, 5), (("read",), 0, 1, 2)),
    "a read during a write, after": history((("write", 1), None, 0, 5), (("read",), 1, 1, 2)),
    "both at one time": history((("write", 1), None, 0, 1), (("read",), 0, 1, 2)),
    "an unknown write has its effect": history((("write", 1), None, 0), (("read",), 1, 1, 2)),
    "an unknown write has none": history((("write", 1), None, 0), (("read",), 0, 1, 2)),
    "an unknown write is late": history(
        (("write", 1), None, 0), (("read",), 0, 1, 2), (("write", 2), None, 3, 4), (("read",), 1, 5, 6)
    ),
    "reads of two writes": history(
        (("write", 1), None, 0, 9), (("write", 2), None, 0, 9), (("read",), 2, 1, 2), (("read",), 1, 3, 4)
    ),
}
BAD = {
    "a lost write": history((("write", 1), None, 0, 1), (("read",), 0, 2, 3)),
    "a read of the future": history((("read",), 1, 0, 1), (("write", 1), None, 2, 3)),
    "a read that goes back": history((("write", 1), None, 0, 9), (("read",), 1, 1, 2), (("read",), 0, 3, 4)),
    "an unknown write that is undone": history((("write", 1), None, 0), (("read",), 1, 1, 2), (("read",), 0, 3, 4)),
    "two orders of two writes": history(
        (("write", 1), None, 0, 1),
        (("write", 2), None, 0, 1),
        (("read",), 1, 2, 3),
        (("read",), 2, 4, 5),
    ),
    "a value that was never written": history((("write", 1), None, 0, 9), (("read",), 3, 1, 2)),
}


@pytest.mark.parametrize("name", GOOD)
def test_a_good_history_is_accepted(name: str) -> None:
    order = linearize(Register(), GOOD[name])
    assert all(operation in order for operation in GOOD[name] if operation.returned < math.inf)


@pytest.mark.parametrize("name", BAD)
def test_a_bad_history_is_rejected(name: str) -> None:
    with pytest.raises(NotLinearizable, match="none of these can be next"):
        linearize(Register(), BAD[name])


def orders(operations: list[Operation]) -> bool:
    """Tries all orders."""
    sure = [operation for operation in operations if operation.returned < math.inf]
    unsure = [operation for operation in operations if operation.returned == math.inf]
    for count in range(len(unsure) + 1):
        for some in itertools.combinations(unsure, count):
            for order in itertools.permutations([*sure, *some]):
                if any(b.returned < a.called for a, b in itertools.combinations(order, 2)):
                    continue
                state: int | None = Register.initial
                for operation in order:
                    state = None if state is None else Register().step(state, operation)
                if state is not None:
                    return True
    return False


def test_the_result_is_that_of_trying_all_orders() -> None:
    found = []
    for seed in range(400):
        chance = random.Random(seed)
        rows = []
        for _ in range(chance.randint(1, 6)):
            called = chance.randint(0, 8)
            returned = called + chance.randint(0, 6) if chance.random() < 0.8 else math.inf
            if chance.random() < 0.5:
                rows.append((("write", chance.randint(1, 2)), None, called, returned))
            else:
                rows.append((("read",), chance.randint(0, 2), called, returned))
        operations = history(*rows)
        expected = orders(operations)
        assert is_linearizable(Register(), operations) == expected, [str(one) for one in operations]
        found.append(expected)
    assert 50 < sum(found) < 350


def test_a_long_history_takes_few_steps() -> None:
    chance = random.Random(1)
    rows: list[tuple[Any, ...]] = []
    messages: list[tuple[int, bytes]] = []
    for number in range(1, 1001):
        body = b"%d" % number
        messages.append((number, body))
        rows.append((("append", body), number, number - chance.random() * 4, number + chance.random() * 4))
        if number % 10 == 0:
            rows.append((("read",), Prefix.of(messages), number, number + chance.random() * 0.5))
    for operations in (history(*rows), history(*rows, (("append", b"lost"), 5000, 17))):
        assert len(linearize(Log(dense=False), operations, max_steps=1_000_000)) == 1100
    with pytest.raises(NotLinearizable, match=r"after \d+ operations"):
        linearize(Log(), history(*rows, (("read",), Prefix.of(messages[:500]), 600, 601)))


def test_a_search_is_bounded() -> None:
    rows = [(("write", number), None, 0, 100) for number in range(1, 30)]
    rows += [(("read",), number % 3 + 1, 200 + number, 200.5 + number) for number in range(3)]
    with pytest.raises(Undecided):
        linearize(Register(), history(*rows), max_steps=5000)


ONE, TWO = (1, b"a"), (2, b"b")


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param([(("append", b"a"), 2, 0, 1)], id="a skipped id"),
        pytest.param([(("append", b"a"), 1, 0, 9), (("append", b"b"), 1, 0, 9)], id="an id twice"),
        pytest.param([(("append", b"a"), 1, 0, 1), (("read",), NOTHING, 2, 3)], id="a lost message"),
        pytest.param([(("append", b"a"), 1, 0, 1), (("read",), Prefix.of([ONE, TWO]), 2, 3)], id="a doubled message"),
        pytest.param([(("append", b"a"), 1, 0, 1), (("read",), Prefix.of([(1, b"b")]), 2, 3)], id="another body"),
        pytest.param(
            [(("append", b"a"), 2, 0, 1), (("append", b"b"), 1, 2, 3)], id="an order that is not that of time"
        ),
        pytest.param(
            [
                (("append", b"a"), 1, 0, 1),
                (("append", b"b"), 2, 2, 9),
                (("read",), Prefix.of([ONE, TWO]), 3, 4),
                (("read",), Prefix.of([ONE]), 5, 6),
            ],
            id="a message that was seen and is gone",
        ),
    ],
)
def test_a_topic_does_not_do_this(rows: list[tuple[Any, ...]]) -> None:
    assert not is_linearizable(Log(), history(*rows))


def test_a_topic_may_do_this() -> None:
    rows = [
        (("append", b"a"), 1, 0, 5),
        (("append", b"b"), 2, 0, 5),
        (("append", b"c"), 3, 0),
        (("read",), Prefix.of([ONE]), 1, 2),
        (("read",), Prefix.of([ONE, TWO]), 1, 6),
        (("read",), Prefix.of([ONE, TWO, (3, b"c")]), 7, 8),
    ]
    assert is_linearizable(Log(), history(*rows))
    assert is_linearizable(Log(dense=False), history((("append", b"a"), 5, 0, 1), (("append", b"b"), 9, 2, 3)))


def test_a_job_is_not_delivered_after_its_ack() -> None:
    rows: list[tuple[Any, ...]] = [(("publish", b"a"), None, 0, 1), (("take", b"a"), None, 0, 2)]
    rows += [(("take", b"a"), None, 2, 3), (("ack", b"a"), None, 3, 5), (("take", b"a"), None, 4, 6)]
    rows += [(("publish", b"b"), None, 0), (("take", b"b"), None, 1, 2), (("ack", b"b"), None, 3)]
    rows += [(("take", b"b"), None, 4, 5), (("ack", b"b"), None, 6, 7), (("ack", b"b"), None, 6, 7)]
    found = check_parts(Job(), history(*rows), lambda operation: operation.call[1])
    assert {key: len(order) for key, order in found.items()} == {b"a": 5, b"b": 6}
    for late in ((("take", b"b"), None, 8, 9), (("take", b"c"), None, 8, 9)):
        with pytest.raises(NotLinearizable, match=f"^{late[0][1]!r}: after"):
            check_parts(Job(), history(*rows, late), lambda operation: operation.call[1])
