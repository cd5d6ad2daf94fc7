"""Launches of which measured numbers stand in another one: copies, perhaps multiplied by a factor.

Clocks count nanoseconds: no two launches have an epoch in common to the last digit, nor one ratio of the
seconds in all their epochs.
"""

from collections.abc import Mapping, Sequence

from unet_scaling.study.record_lines import Epoch

# So many different numbers agree to nine digits in no two of 10,000 runs by chance.
FEWEST_NUMBERS = 3
RATIO_DIGITS = 9
WHOLE_RUN = -1

# {digest of what was measured: its epoch, or WHOLE_RUN}
Digests = Mapping[int, int]


def measured_digests(epochs: Sequence[Epoch]) -> Digests:
    """Return the digests of the epochs that count for speed, and of the ratios of their seconds.

    None of a launch that has two equal epochs, as no clock gives.
    """
    used = [epoch for epoch in epochs if not epoch.warmup]
    if len(used) < 2 or len({epoch.seconds for epoch in used}) < len(used):
        return {}
    seconds = [own for epoch in used for own in epoch.worker_seconds]
    found = {WHOLE_RUN: tuple(round(own / seconds[0], RATIO_DIGITS) for own in seconds)}
    for epoch in used:
        phases = (*epoch.budget.forward_seconds, *epoch.budget.sync_seconds) if epoch.budget else ()
        processors = [facts.process_seconds for facts in epoch.cpu or ()]
        found[epoch.epoch] = (*epoch.worker_seconds, *phases, *processors)
    return {hash(numbers): of for of, numbers in found.items() if len(set(numbers)) >= FEWEST_NUMBERS}


def copied(launches: Mapping[str, Digests], seconds: Mapping[str, Sequence[float]]) -> dict[str, str]:
    """Return the runs whose numbers stand in another one too, {run: reason}; either may be the copy.

    `seconds` are those of all epochs of each run.
    """
    first: dict[int, str] = {}
    reasons: dict[str, str] = {}
    for run, digests in launches.items():
        for digest, of in digests.items():
            other = first.setdefault(digest, run)
            if other == run:
                continue
            its = launches[other][digest]
            same = f"epochs {of} and {its} agree to the last digit"
            if of == WHOLE_RUN:
                same = f"the epochs have one ratio, to {RATIO_DIGITS} digits in each"
            both = f"{same} ({seconds[run][of]} s and {seconds[other][its]} s): one is a copy of the other"
            reasons.setdefault(run, f"run.jsonl and {other}/run.jsonl: {both}")
            reasons.setdefault(other, f"run.jsonl and {run}/run.jsonl: {both}")
    return reasons
