"""The figures of the page: which stand first, and what is said of those that are not drawn."""

from analysis.report.pictures import Pictures
from analysis.report.view import Drawing
from analysis.text import clean, sentence

MAIN_FIGURES = ("speedup", "efficiency")
TITLES = {
    "budget": "loss budget",
    "difference": "difference of the frameworks in parts",
    "wire": "wire of a step",
    "speedup": "speed-up",
    "iou": "IoU",
    "loss_epochs": "loss against epochs",
    "loss_seconds": "loss against seconds",
    "time_to_iou": "IoU against training time",
}


def main_figures(pictures: Pictures) -> tuple[str, ...]:
    """The figures of the first screen: throughput where no speed-up is known."""
    return tuple(name for name in MAIN_FIGURES if name in pictures.drawn) or ("throughput",)


def drawings(pictures: Pictures, *names: str) -> tuple[Drawing, ...]:
    """Those of these figures that are drawn."""
    return tuple(
        Drawing(name, pictures.drawn[name].inline, clean(pictures.drawn[name].caption))
        for name in names
        if name in pictures.drawn
    )


def absent(pictures: Pictures, *names: str) -> tuple[str, ...]:
    """Why the others of them are not."""
    return tuple(
        f"Not drawn: {TITLES.get(name, name)}. {sentence(pictures.absent[name])}"
        for name in names
        if name in pictures.absent
    )
