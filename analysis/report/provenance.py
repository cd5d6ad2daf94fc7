"""Name where the runs of a report come from: code, software, machine, data, times."""

from collections.abc import Iterable
from dataclasses import dataclass

from analysis.facts import FACTS, values_of, version_facts
from analysis.study import NAMES, Study
from analysis.text import clean, count

# More hosts or jobs than this fill the page without saying more.
MOST_SHOWN = 12
# Of a time in ISO 8601: 2025-01-31.
_DATE_LETTERS = 10


@dataclass(frozen=True)
class Origin:
    """One fact of where the runs come from, with every value that the records have."""

    name: str
    values: tuple[str, ...]


def origins(study: Study) -> list[Origin]:
    """Return every fact that the headers of the used runs tell; empty for logs that carry none."""
    found = [*study.headers.values(), *study.scripts.values()]
    if not found:
        return []
    facts = [fact for fact in FACTS if study.headers or fact.group != "data"]
    # Scripts of Fabric and of the Trainer are one arm.
    fabric = NAMES["lightning"]
    named: dict[str, Iterable[str | None]] = {
        fact.title(found[0]).replace(fabric, study.names.get("lightning", fabric)): values_of(fact, found)
        for fact in (*facts, *version_facts({**study.headers, **study.scripts}))
    }
    named["scripts"] = [each.script or "typed" for each in study.scripts.values()]
    named["SHA-256 of the scripts"] = [each.script_sha256 or "not known" for each in study.scripts.values()]
    told = [Origin(clean(name), _distinct(values)) for name, values in named.items() if values]
    jobs = Origin("Slurm jobs", _distinct(each.job.get("SLURM_JOB_ID") for each in found))
    return [*told, jobs, Origin("started (UTC)", _ends(each.started_utc for each in found))]


def origin_line(study: Study) -> str:
    """Return commit, hosts and days of the used runs in one sentence; empty for logs that carry none."""
    found = [*study.headers.values(), *study.scripts.values()]
    if not found:
        return ""
    code = count(len({each.commit for each in found}), "commit")
    hosts = count(len({worker.host for each in found for worker in each.workers}), "host")
    days = _ends(each.started_utc[:_DATE_LETTERS] for each in found)
    return f"{code}, {hosts}, {' to '.join(days)}."


def _distinct(values: Iterable[str | None]) -> tuple[str, ...]:
    """Return every value once, or the first and how many more there are: at most MOST_SHOWN lines and one."""
    texts = [clean(value) for value in dict.fromkeys(values) if value is not None]
    more = len(texts) - MOST_SHOWN
    # "and 1 other" would take the place of the value.
    return (*texts[:MOST_SHOWN], f"and {count(more, 'other')}") if more > 1 else tuple(texts)


def _ends(times: Iterable[str]) -> tuple[str, ...]:
    """Return the first and the last time."""
    ordered = sorted(set(times))
    return tuple(clean(time) for time in dict.fromkeys((ordered[0], ordered[-1])))
