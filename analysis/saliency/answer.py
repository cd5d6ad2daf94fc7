"""The answer of a study whose runs tell of saliency maps only: what they show, and no speed of training."""

from analysis.findings.answer import Answer
from analysis.findings.tiles import COST_TITLE, Light, Tile
from analysis.saliency.findings import SaliencyFindings
from analysis.text import count

_NOT_MEASURED = "not measured"
_NO_EPOCH = "no epoch after the warm-up"
_TRAIN = "to compare speed and IoU, set training.epochs to 2 or more in a study of its own"


def maps_answer(found: SaliencyFindings) -> Answer:
    """Return the answer of a study without any run that has a speed; `found` has a run with maps."""
    maps = int(found.runs["maps"].sum())
    runs = count(len(found.runs), "run")
    detail = found.warnings[0] if found.warnings else ""
    made = f"{count(maps, 'map')} of {runs}"
    shown = found.sentences[0] if len(found.faithful) else f"{made}, none with deletion and insertion curves"
    trusted: Light = "caution" if detail else "unknown"
    tiles = (
        Tile("Speed", _NOT_MEASURED, _NO_EPOCH, "unknown"),
        Tile(found.study.score.heading, "not compared", _NO_EPOCH, "unknown"),
        Tile(COST_TITLE, _NOT_MEASURED, _NO_EPOCH, "unknown"),
        Tile("Trust", made, detail or "no warning", trusted),
    )
    return Answer("", "maps", f"saliency maps only: {shown}", tiles, (_TRAIN,))
