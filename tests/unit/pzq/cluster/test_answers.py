"""Producers that wait for replicas."""

from __future__ import annotations

from omq.pzq.cluster.answers import PendingAnswers
from omq.pzq.cluster.keys import Keys
from omq.pzq.device.producer_server import ProducerRequest
from tests.unit.pzq.cluster.sample_keys import keys


def producers(*names: str) -> list[ProducerRequest]:
    return [(name.encode(), b"id") for name in names]


def test_each_producer_is_answered_once_however_answers_part() -> None:
    answered: list[tuple[list[ProducerRequest], bytes | None]] = []
    answers = PendingAnswers(lambda asked, text: answered.append((asked, text)))
    together = Keys([*keys(1, 3).ranges, *keys(9, 2, when=101).ranges])
    answers.add(together, producers(*"abcde"))
    answers.add_repeated(together[1], producers("b", "x"))
    answers.add_repeated(together[1], producers("x"))
    answers.answer(together[1:4], None)
    answers.answer(together, b"late")
    assert answered == [(producers(*"bcdx"), None), (producers("a", "e"), b"late")]
    answers.answer(together, None)
    assert len(answered) == 2
