"""Whether each framework had its share of the nodes and devices.

Guards against launches of one framework that went to nodes of their own (--nodelist, a reservation, another
account), and a slow node that served one of them: an epoch lasts as long as its slowest worker. What a
scheduler deals out at random is left to the interval; what a user chose is no chance.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from analysis.judge.chance import REFUSED, Statistics, unequal_use, unless_chance, unlike
from analysis.judge.launch_checks import Checked
from analysis.numbers.check import YES, Check, PointPair, yes
from analysis.numbers.contrast import in_both, names_of_pair
from analysis.study import Array
from analysis.text import Row
from unet_scaling.format.facts import PLACES, Fact, values_of

# Of a job, by who submits it: all else of a place a scheduler chooses.
CHOSEN = ("SLURM_CLUSTER_NAME", "SLURM_CPUS_PER_TASK")
# Where a user chose: three launches of each framework on two hosts lie apart as far as they can in 10 %.
REFUSED_CHOICE = 0.12


def check_shares(facts: Sequence[Fact], subject: Checked) -> Check:
    """Check that no value of these sets was of one framework's launches more often than by chance."""
    dealt = [fact for fact in facts if subject.is_drawn and fact.row == PLACES and fact.name not in CHOSEN]
    chosen = [fact for fact in facts if fact not in dealt]
    check = yes("")
    for of, most in ((chosen, REFUSED_CHOICE), (dealt, REFUSED)):
        found = list(unlike(subject.sides, lambda *dealt, of=of: _unequal(of, subject, *dealt)))
        check = unless_chance(found, "", most)
        if check.mark != YES:
            cure = " (submit with --one-allocation)" if facts[0].row == PLACES else ""
            return replace(check, fact=f"{check.fact}: a difference may be theirs{cure}")
    pairs = subject.sides.values()
    hosts = [
        {host for both in pairs for run in both[side] for host in run["hosts"].split()} for side in (0, 1)
    ]
    is_apart = bool(dealt) and hosts[0].isdisjoint(hosts[1])
    return replace(check, remark="no node served both frameworks" if is_apart else "")


def _unequal(
    facts: Sequence[Fact], subject: Checked, weights: Array, runs: Sequence[Row], pair: PointPair
) -> Statistics:
    """Return how unequally the frameworks had the values of each fact, by the one that differs most."""
    found = {}
    for fact in facts:
        each = [{*values_of(fact, subject.headers[run["run"]].attempts())} for run in runs]
        values = sorted(set().union(*each))
        if len(values) > 1:
            use = np.array([[value in own for value in values] for own in each])
            told = []
            for sign in (1, -1):
                most = int((sign * weights[0] @ use).argmax())
                own = use[sign * weights[0] > 0, most]
                told.append([f"in {own.sum()} of {len(own)} launches {values[most]}"])
            words = in_both(fact.name, told, names_of_pair(subject.study.names, pair))
            found[words] = unequal_use(weights, use)
    return found
