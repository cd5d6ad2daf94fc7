"""Remarks on runs that may be compared: what is no reason to refuse one, but should be known."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from analysis.loading.resources import hosts, moved_between_attempts, share_cores
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
    """Return what is no reason to refuse a comparison, but should be known to who reads it."""
    notes = []
    if any(header.dirty for header in headers.values()):
        notes.append("the code had uncommitted changes: its commit does not say all that ran")
    if _hosts_differ(headers.values()):
        notes.append("runs of equal worker count used different hosts: a difference may be that of the hosts")
    if any(share_cores(header) for header in headers.values()):
        notes.append("GPU workers of a run could use the same cores; bind them to separate cores")
    if len({header.config.data.folder for header in headers.values()}) > 1:
        notes += _folders_of_equal_data(headers.values())
    notes += dict.fromkeys(filter(None, map(_slowed, headers.values())))
    if any(header.config.task.find_unused_parameters for header in headers.values()):
        notes.append(_ZERO_GRADIENTS)
    notes += _resumed_elsewhere(headers)
    notes += _unknown_attempts(unknown_attempts)
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


def _resumed_elsewhere(headers: Mapping[str, Header]) -> Iterator[str]:
    moved = {run: places for run, header in headers.items() if (places := moved_between_attempts(header))}
    if len(moved) == 1:
        ((run, places),) = moved.items()
        yield f"{run} was resumed on other hosts: {places}"
    elif moved:
        named = first_of([f"{run} ({places})" for run, places in moved.items()], "run", _MOST_NAMED)
        yield f"{len(moved)} runs were resumed on other hosts: {named}"


def _unknown_attempts(runs: Sequence[str]) -> Iterator[str]:
    lost = "(run.attemptN.jsonl beside run.jsonl) is missing or damaged"
    if len(runs) == 1:
        where = "where an earlier attempt of it ran, on what code and cores, is not known"
        yield f"{runs[0]} was resumed, and {where}: the record of that attempt {lost}"
    elif runs:
        where = "where an earlier attempt of each ran, on what code and cores, is not known"
        resumed = f"{len(runs)} runs were resumed, and {where}: the record of that attempt {lost}"
        yield f"{resumed}: {first_of(runs, 'run', _MOST_NAMED)}"


def _folders_of_equal_data(headers: Iterable[Header]) -> Iterator[str]:
    folders: dict[str, set[str]] = {}
    for header in headers:
        folders.setdefault(header.manifest_sha256, set()).add(header.config.data.folder)
    for several in folders.values():
        if len(several) > 1:
            places = ", ".join(sorted(several))
            yield f"equal images were read from {places}: a difference may be that of their storage"


def _hosts_differ(headers: Collection[Header]) -> bool:
    # Those of a slowed virtual cluster are all of one machine.
    real = [header for header in headers if header.dilation is None]
    used = {(header.config.workers, hosts(header.attempts())) for header in real}
    return len(used) > len({workers for workers, _ in used})
