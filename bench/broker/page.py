"""Puts measured figures and plots into docs/reference/broker-performance.md, each between the marks of its case."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

from bench.broker.install import PROGRAMS, client_versions, version
from bench.broker.plan import SCENARIOS, BrokerLoad, cases
from bench.broker.plot import plot
from bench.broker.report import BrokerResult, section
from bench.processes import ROOT

PAGE = ROOT / "docs" / "reference" / "broker-performance.md"
PLOTS = PAGE.with_suffix("")  # a folder of the same name
PAGE_MINUTES, PAGE_BURST_S = 12.0, 0.6  # the measurement of the whole page, and each burst


def write_case(result: BrokerResult, command: str, kind: str, page: Path = PAGE) -> None:
    """Replaces the text of the page between the marks of a case, and its plot.

    Args:
        result: The results.
        command: The command that measures it again.
        kind: The file system of the servers' data.
        page: Another page than the one in the docs; its plots are next to it.

    Raises:
        ValueError: The page has no such marks.
    """
    key = result.case.key
    plots = page.with_suffix("")
    text = page.read_text(encoding="utf-8")
    marks = re.compile(rf"(?<=<!-- {key} -->\n).*?(?=<!-- /{key} -->)", re.DOTALL)
    if not marks.search(text):
        raise ValueError(f"{page} has no marks for {key}: add them")
    plots.mkdir(exist_ok=True)
    (plots / f"{key}.svg").write_text(plot([result]), encoding="utf-8")
    rounds = max((len(samples) for samples in result.samples.values()), default=0)
    counted = f"{rounds} rounds" if rounds != 1 else "one round"
    lines = [f"`{command}`: medians of {counted}. {machine(kind)}", ""]
    lines += [f"![{result.case.title}]({plots.name}/{key}.svg)", "", section(result)]
    filled = "\n" + "\n".join(lines).rstrip() + "\n"
    page.write_text(marks.sub(lambda _: filled, text), encoding="utf-8")


def machine(kind: str) -> str:
    """Returns the machine and all versions, in a line."""
    import omq

    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / (1 << 30)
    servers = [found for server in PROGRAMS if (found := version(server))]
    return (
        f"{os.cpu_count()} cores ({model}), {memory:.0f} GiB of memory, {kind}, Linux {platform.release()}; "
        f"Python {platform.python_version()}, omq {omq.__version__}, {', '.join([*servers, *client_versions()])}."
    )


def case_keys() -> list[str]:
    """Returns the keys of all cases; the page has marks for each."""
    return [case.key for case in cases(BrokerLoad(1024, 1000, PAGE_BURST_S, 1, 1)) if case.scenario in SCENARIOS]
