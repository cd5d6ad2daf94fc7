"""Verify that an attempt may go on with what earlier ones trained.

The same images, device, cores, threads, dilation and versions: with another of these the record would be of
neither, and the analysis would leave the whole run out. Other hosts, another commit or other variables are
printed: a lost node or a corrected program is no reason to train anew, and the analysis compares them.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from unet_scaling.study.errors import EXIT_BAD_DATA, UserError
from unet_scaling.study.record_lines import AttemptFacts, WorkerFacts

_Fact = Callable[[AttemptFacts], object]

FIXED_WORKER_FACTS: dict[str, Callable[[WorkerFacts], object]] = {
    "device": lambda worker: worker.device,
    "cores per worker": lambda worker: len(worker.cores),
    "threads": lambda worker: worker.threads,
}
FIXED_FACTS: dict[str, _Fact] = {
    "dilation": lambda facts: facts.dilation,
    "link rate": lambda facts: facts.link_rate,
}
# Nodes of one cluster may differ in their driver.
VERSIONS_THAT_MAY_DIFFER = ("driver",)
REMARKED: dict[str, _Fact] = {
    "the commit": lambda facts: facts.commit,
    "whether changes were uncommitted": lambda facts: facts.dirty,
    "the set of hosts": lambda facts: sorted({worker.host for worker in facts.workers}),
    "the allocator": lambda facts: _of_each(facts, lambda worker: worker.allocator),
    "a variable that decides speed": lambda facts: _of_each(facts, lambda worker: worker.environment),
}


def require_same_facts(earlier: Sequence[AttemptFacts], now: AttemptFacts, folder: Path) -> list[str]:
    """Return a sentence for each fact that has changed and does not matter here.

    Raises UserError: 65 where the checkpoints are of other images or do not say of which, 2 where they were
    made on another device, or with other cores, threads or versions.
    """
    cure = f"remove {folder}/checkpoint-* to train from the start"
    before = _attempt_before(earlier, folder, cure)
    _require_same_images(before, now, folder, cure)
    _require_same_conditions(before, now, folder, cure)
    return [
        f"{name} differs from attempt {before.attempt}: {fact(before)} then, {fact(now)} now"
        for name, fact in REMARKED.items()
        if fact(before) != fact(now)
    ]


def _attempt_before(earlier: Sequence[AttemptFacts], folder: Path, cure: str) -> AttemptFacts:
    if not earlier:
        raise UserError(
            f"the checkpoints in {folder} do not say which images they were trained on, for an earlier "
            f"version of this program wrote them: {cure}",
            EXIT_BAD_DATA,
        )
    return earlier[-1]


def _require_same_images(before: AttemptFacts, now: AttemptFacts, folder: Path, cure: str) -> None:
    if before.manifest_sha256 != now.manifest_sha256:
        raise UserError(
            f"the checkpoints in {folder} were trained on other images: attempt {before.attempt} had the "
            f"manifest with SHA-256 {before.manifest_sha256}, now it is {now.manifest_sha256}; "
            f"bring back the images and their manifest, or {cure}",
            EXIT_BAD_DATA,
        )


def _require_same_conditions(before: AttemptFacts, now: AttemptFacts, folder: Path, cure: str) -> None:
    differing = _differing_machines(before, now) + _differing_versions(before, now)
    if differing:
        raise UserError(
            f"the checkpoints in {folder} were made under other conditions: {'; '.join(differing)}; "
            f"go on as attempt {before.attempt} did, or {cure}"
        )


def _differing_machines(before: AttemptFacts, now: AttemptFacts) -> list[str]:
    found = {name: (_of_each(before, fact), _of_each(now, fact)) for name, fact in FIXED_WORKER_FACTS.items()}
    found |= {name: (str(fact(before)), str(fact(now))) for name, fact in FIXED_FACTS.items()}
    return [
        f"{name}: {old} in attempt {before.attempt}, {new} now"
        for name, (old, new) in found.items()
        if old != new
    ]


def _differing_versions(before: AttemptFacts, now: AttemptFacts) -> list[str]:
    return [
        f"{name}: {before.versions.get(name, 'none')} in attempt {before.attempt}, "
        f"{now.versions.get(name, 'none')} now"
        for name in sorted(before.versions.keys() | now.versions.keys())
        if name not in VERSIONS_THAT_MAY_DIFFER and before.versions.get(name) != now.versions.get(name)
    ]


def _of_each(facts: AttemptFacts, fact: Callable[[WorkerFacts], object]) -> str:
    """Return the values of all workers, each once: a worker may have another rank in the next attempt."""
    return ", ".join(sorted({str(fact(worker)) for worker in facts.workers}))
