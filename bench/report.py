"""Medians, spreads, ratios and verdicts, as plain text tables."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import Any

from bench.measure import Sample
from bench.peers import PEERS
from bench.plan import P50, Case, Metric, Target

#: Microseconds. A bare round trip above this had to wake a core that had gone idle, twice.
IDLE_TRIP = 40.0


@dataclass
class Findings:
    """What the rounds of a case gave.

    Attributes:
        case: The case.
        samples: One sample a round, by peer.
        failures: Why a peer has none, or too few.
        trip: The median round trip of bare sockets before the case, in microseconds; `None` if it was not taken.
    """

    case: Case
    samples: dict[str, list[Sample]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    trip: float | None = None

    @property
    def machine(self) -> str:
        """The state that the machine was in, in words."""
        trip = self._trip
        if trip is None:
            return "unknown"
        state = "idle: a core has to wake for each message" if self.idle else "loaded: the cores stay awake"
        return f"{state} (bare round trip {trip:.1f} us)"

    @property
    def idle(self) -> bool:
        """Whether cores had time to go to sleep between messages: nothing else ran."""
        trip = self._trip
        return trip is None or trip > IDLE_TRIP

    @property
    def _trip(self) -> float | None:
        # The rounds themselves say it best.
        own = self.median("bare", P50) if P50 in self.case.metrics and "bare" in self.samples else None
        return own if own is not None else self.trip

    def median(self, peer: str, metric: Metric) -> float | None:
        """The median over the rounds; `None` for a peer that did not run through."""
        values = [sample[metric.key] for sample in self.samples.get(peer, ()) if metric.key in sample]
        return median(values) if values and peer not in self.failures else None

    def ratio(self, peer: str, metric: Metric | None = None, subject: str | None = None) -> float | None:
        """omq's median over the peer's; in the first metric and for the case's subject, if no others are given."""
        metric = metric or self.case.metrics[0]
        mine, other = self.median(subject or self.case.subject, metric), self.median(peer, metric)
        return mine / other if mine is not None and other else None

    def bound(self, target: Target) -> float:
        """The bound that holds in the machine's state."""
        return target.idle if target.idle is not None and self.idle else target.bound

    def value(self, target: Target) -> float | None:
        """What is held against the bound."""
        metric = target.metric or self.case.metrics[0]
        if target.peer:
            return self.ratio(target.peer, metric, target.subject)
        return self.median(target.subject or self.case.subject, metric)

    def verdict(self, target: Target) -> str:
        """`ok`, `MISSED`, or `not measured`."""
        metric = target.metric or self.case.metrics[0]
        value, bound = self.value(target), self.bound(target)
        if value is None:
            return "not measured"
        met = value <= bound if metric.less_is_better else value >= bound
        return "ok" if met else "MISSED"

    def aim(self, target: Target) -> str:
        """The target in words."""
        metric = target.metric or self.case.metrics[0]
        sign, bound = "<=" if metric.less_is_better else ">=", self.bound(target)
        return f"{sign} {bound:g}x" if target.peer else f"{sign} {figure(bound, metric)}"

    def as_json(self) -> dict[str, Any]:
        """Everything, for a file."""
        return {
            "case": self.case.title,
            "machine": self.machine,
            "peers": {
                peer: {
                    "rounds": samples,
                    "medians": {m.key: self.median(peer, m) for m in self.case.metrics},
                    "ratio": self.ratio(peer),
                }
                for peer, samples in self.samples.items()
            },
            "targets": [
                {
                    "subject": t.subject or self.case.subject,
                    "peer": t.peer,
                    "metric": (t.metric or self.case.metrics[0]).key,
                    "bound": self.bound(t),
                    "verdict": self.verdict(t),
                }
                for t in self.case.targets
            ],
            "failures": self.failures,
        }


def table(findings: Findings) -> str:
    """The case as a table: a row for each peer, omq's ratio to it, and the target."""
    case, main = findings.case, findings.case.metrics[0]
    head = ["", main.title, "spread", *(m.title for m in case.metrics[1:]), "omq / it", "target", ""]
    rows = [head, *(_row(findings, peer) for peer in case.runs)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = [f"== {case.title}"]
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    lines += [_beside(findings, target) for target in case.targets if target.metric or target.subject]
    lines.append(f"machine: {findings.machine}")
    for peer, why in findings.failures.items():
        lines.append(f"!! {PEERS[peer].label} FAILED: {why}")
    return "\n".join(lines)


def _row(findings: Findings, peer: str) -> list[str]:
    case, main = findings.case, findings.case.metrics[0]
    samples = findings.samples.get(peer, [])
    values = [sample[main.key] for sample in samples]
    ratio = findings.ratio(peer) if peer != case.subject else None
    own = (t for t in case.targets if not (t.metric or t.subject) and (t.peer or case.subject) == peer)
    target = next(own, None)
    return [
        PEERS[peer].label,
        figure(findings.median(peer, main), main),
        f"{figure(min(values), main)} - {figure(max(values), main)}" if values else "-",
        *(figure(findings.median(peer, metric), metric) for metric in case.metrics[1:]),
        f"{ratio:.2f}x" if ratio is not None else "",
        findings.aim(target) if target else "",
        findings.verdict(target) if target else "",
    ]


def _beside(findings: Findings, target: Target) -> str:
    """A target that is not about the first column, or not about the case's subject."""
    value = findings.value(target)
    text = "-" if value is None else f"{value:.2f}x {PEERS[target.peer].label}" if target.peer else f"{value:,.1f}"
    about = PEERS[target.subject].label if target.subject else (target.metric or findings.case.metrics[0]).title
    return f"{about}: {text}, target {findings.aim(target)}: {findings.verdict(target)}"


def figure(value: float | None, metric: Metric) -> str:
    """A value with the metric's digits."""
    return "-" if value is None else f"{value:,.{metric.decimals}f}"
