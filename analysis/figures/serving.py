"""Draw what `unet-scaling serve --measure` wrote: latency against throughput, by setting."""

from itertools import cycle
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from analysis.figures.style import DASHED, PALETTE, PX_PER_INCH, STYLE

_WIDTH_PX, _HEIGHT_PX = 720, 480
_MARKERS = "osD^vPX<>"


def draw_latencies(table: Path) -> Path:
    """Draw median, 99th percentile and their intervals of each setting beside the table; return the SVG.

    A percentile that refused requests reach is infinite, and is not drawn; the fresh run of the advice is a
    star.
    """
    loads = pd.read_csv(table).replace(np.inf, np.nan)
    with rc_context(STYLE):
        size = (_WIDTH_PX / PX_PER_INCH, _HEIGHT_PX / PX_PER_INCH)
        figure = Figure(size, dpi=PX_PER_INCH, layout="constrained")
        axes = figure.subplots()
        settings = loads[~loads["is_fresh"]].groupby(["batch", "wait_ms"])
        colours = cycle(colour for colour, _ in PALETTE)
        for (setting, rows), colour, marker in zip(settings, colours, cycle(_MARKERS), strict=False):
            label = "batches of up to {}, wait {} ms".format(*setting)
            for name, style in (("median", "-"), ("p99", DASHED)):
                values = rows[f"{name}_ms"]
                ends = [values - rows[f"{name}_low_ms"], rows[f"{name}_high_ms"] - values]
                axes.errorbar(
                    rows["images_per_s"],
                    values,
                    ends,
                    color=colour,
                    linestyle=style,
                    marker=marker,
                    label=label,
                )
                label = ""
        for _, fresh in loads[loads["is_fresh"]].iterrows():
            values = fresh[["median_ms", "p99_ms"]]
            axes.plot([fresh["images_per_s"]] * 2, values, "k*", markersize=12, label="fresh run of the best")
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set_xlim(left=0)
        axes.set_xlabel("images answered a second, of requests at random moments")
        axes.set_ylabel("latency in ms: median, dashed 99th percentile")
        figure.legend(loc="outside upper left", ncols=2)
        path = table.with_suffix(".svg")
        figure.savefig(path, metadata={"Date": None})
    return path
