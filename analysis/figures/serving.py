"""Draw what `unet-scaling serve --measure` wrote: latency against the rate of requests, by setting."""

from pathlib import Path

import pandas as pd
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from analysis.figures.style import DASHED, PALETTE, PX_PER_INCH, STYLE

_WIDTH_PX, _HEIGHT_PX = 720, 400
_MARKERS = "osD^v"


def draw_latencies(table: Path) -> Path:
    """Draw median and 99th percentile of each setting beside the table; return the SVG.

    A marker is hollow where requests were refused: the latencies are those of the others.
    """
    loads = pd.read_csv(table)
    with rc_context(STYLE):
        size = (_WIDTH_PX / PX_PER_INCH, _HEIGHT_PX / PX_PER_INCH)
        figure = Figure(size, dpi=PX_PER_INCH, layout="constrained")
        axes = figure.subplots()
        groups = loads.groupby(["batch", "wait_ms"])
        for (setting, rows), (colour, _), marker in zip(groups, PALETTE, _MARKERS, strict=False):
            label = "batches of up to {}, wait {} ms".format(*setting)
            rates, refused = rows["requests_per_s"], rows["answered"] < rows["requests"]
            for column, style in (("median_ms", "-"), ("p99_ms", DASHED)):
                axes.plot(rates, rows[column], color=colour, linestyle=style, label=label)
                axes.plot(rates[~refused], rows[column][~refused], marker, color=colour)
                axes.plot(rates[refused], rows[column][refused], marker, color=colour, markerfacecolor="none")
                label = ""
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set_xlim(left=0)
        axes.set_xlabel("requests a second, at random moments")
        axes.set_ylabel("latency in ms: median, dashed 99th percentile")
        figure.legend(loc="outside upper left", ncols=2)
        path = table.with_suffix(".svg")
        figure.savefig(path, metadata={"Date": None})
    return path
