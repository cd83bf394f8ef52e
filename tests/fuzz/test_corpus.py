"""The inputs that the fuzzer has kept stay harmless."""

from pathlib import Path

from tests.fuzz.mutate import mutated
from tests.fuzz.targets import TARGETS, one_input

CORPUS = sorted((Path(__file__).parent / "corpus").iterdir())


def test_every_input_of_the_corpus() -> None:
    first_bytes = set()
    for path in CORPUS:
        data = path.read_bytes()
        one_input(data)
        first_bytes.update(data[:1])
    assert {number % len(TARGETS) for number in first_bytes} == set(range(len(TARGETS))), "every parser has an input"


def test_a_few_variations_of_it() -> None:
    from random import Random

    random, seeds = Random(1), [path.read_bytes() for path in CORPUS if path.stat().st_size]
    tried = set()
    for _ in range(2000):
        data = mutated(random, seeds)
        one_input(data)
        tried.add(data)
    assert len(tried - set(seeds)) > 1000, "the variations vary"
