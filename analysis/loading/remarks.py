"""Remarks on runs that may be compared: what is no reason to refuse one, but should be known."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from analysis.text import first_of
from unet_scaling.study.record_lines import Header

# Runs are named so that one can be looked at; a note of all would hide the others.
_MOST_NAMED = 3
_ZERO_GRADIENTS = (
    "task.find_unused_parameters = true: a parameter that a pass does not use gets a gradient of zero from "
    "it, with every framework alike; a script that leaves such a parameter without gradient may train other "
    "weights, at another speed"
)


def remarks(headers: Mapping[str, Header], unknown_attempts: Sequence[str] = ()) -> tuple[str, ...]:
    """Return what no row of the fairness table says, but should be known to who reads a comparison."""
    notes = []
    if any(header.dirty for header in headers.values()):
        notes.append("the code had uncommitted changes: its commit does not say all that ran")
    if len({header.config.data.folder for header in headers.values()}) > 1:
        notes += _folders_of_equal_data(headers.values())
    notes += dict.fromkeys(filter(None, map(_slowed, headers.values())))
    if any(header.config.task.find_unused_parameters for header in headers.values()):
        notes.append(_ZERO_GRADIENTS)
    if unknown_attempts:
        notes.append(
            "where an earlier attempt ran, on what code and cores, is not known: its record "
            f"(run.attemptN.jsonl) is missing or damaged: {first_of(unknown_attempts, 'run', _MOST_NAMED)}"
        )
    return tuple(notes)


def _slowed(header: Header) -> str:
    """Return that a run is of a dilated cluster; empty where it is not."""
    if header.dilation is None:
        return ""
    links = f"links of {header.link_rate}" if header.link_rate else "links that are not limited"
    return (
        f"on a virtual cluster that was slowed {header.dilation:g}-fold as a whole, with {links}: seconds "
        "are those of the cluster that it stands for, and no real one was measured"
    )


def _folders_of_equal_data(headers: Iterable[Header]) -> Iterator[str]:
    folders: dict[str, set[str]] = {}
    for header in headers:
        folders.setdefault(header.manifest_sha256, set()).add(header.config.data.folder)
    for several in folders.values():
        if len(several) > 1:
            places = ", ".join(sorted(several))
            yield f"equal images were read from {places}: a difference may be that of their storage"
