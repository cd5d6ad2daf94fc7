"""Nodes and devices that a scheduler dealt out: whether two frameworks share them as chance has it.

Guards against launches of one framework that went to nodes of their own (--nodelist, a reservation, a second
account), and against a slow node that served one of them. What is dealt at random is left to the interval.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from analysis.chance import Statistics, unequal_use, unless_chance, unlike
from analysis.contrast import YES, Check, PointPair, in_both, names_of_pair
from analysis.machines import Checked
from analysis.study import Array
from analysis.text import Row, count
from unet_scaling.study.facts import Fact, values_of

HOSTS = "hosts"


def check_dealt(dealt: Sequence[Fact], subject: Checked) -> Check:
    """Check that no node, device or partition served one framework more often than chance explains."""

    def had(run: Row, fact: Fact) -> set[str]:
        return {*values_of(fact, subject.headers[run["run"]].attempts())}

    def unequal(weights: Array, runs: Sequence[Row], pair: PointPair) -> Statistics:
        names = names_of_pair(subject.study, pair)
        found = {}
        for fact in dealt:
            each = [had(run, fact) for run in runs]
            values = sorted(set().union(*each))
            if len(values) > 1:
                use = np.array([[value in own for value in values] for own in each])
                most = int(np.abs(weights[0] @ use).argmax())
                sides = [use[weights[0] * sign > 0, most] for sign in (1, -1)]
                told = [[f"{side.sum()} of {len(side)}"] for side in sides]
                words = in_both(f"{fact.name}, launches on {values[most]}", told, names)
                found[words] = unequal_use(weights, use)
        return found

    check = unless_chance(list(unlike(subject.sides, unequal)), "")
    if check.mark != YES:
        return replace(check, fact=f"{check.fact}: a difference may be theirs (submit with --one-allocation)")
    hosts = next(fact for fact in dealt if fact.name == HOSTS)
    sides = zip(*subject.sides.values(), strict=True)
    both = [{host for runs in side for run in runs for host in had(run, hosts)} for side in sides]
    nodes = count(len(set().union(*both)), "node")
    fact = f"a scheduler gave each run its own of {nodes}, to both frameworks alike as far as chance tells"
    if both and both[0].isdisjoint(both[-1]):
        return replace(check, fact=fact, remark="no node served both frameworks")
    return replace(check, fact=fact)
