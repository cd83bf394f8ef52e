"""Bar charts as SVG."""

from __future__ import annotations

from xml.etree import ElementTree

from omq.cli.bench.bar_chart import BarChart, svg

SVG = "{http://www.w3.org/2000/svg}"


def test_bars_are_as_long_as_their_values() -> None:
    charts = [
        BarChart("Messages & more", ("omq", "pyzmq"), [("128 B", (2e6, 1e6)), ("1 <MiB>", (5e5, None))]),
        BarChart("Times", ("omq", "pyzmq"), [("128 B", (0.0, 0.0))]),
    ]
    root = ElementTree.fromstring(svg(charts))
    widths = [float(bar.get("width", "")) for bar in root.iter(f"{SVG}rect") if bar.get("height") == "14"]
    assert widths[0] == 2 * widths[1] == 4 * widths[2]
    assert widths[3:] == [0, 0]
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert {"Messages & more", "Times", "omq", "pyzmq", "1 <MiB>", "2,000,000", "500,000", "0.0"} <= set(texts)
    assert float(root.get("height", "")) == sum(chart.height for chart in charts)
