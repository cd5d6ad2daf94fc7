"""What a report or a comparison claims on its first screen, by its files and not by its sentences."""

import json
from collections.abc import Sequence
from pathlib import Path

from analysis.assemble import make_report
from analysis.load import load_study
from analysis.report.exports import summary_json
from tests.reports import Compared
from tests.tampering import rows_of

FEWEST_FOR_TRUST = 5
CLAIMS = ("native DDP faster", "Horovod faster")
STUDIES_DIFFER = ("A faster", "B faster", "A higher", "B higher")


def claims_plainly(report: Path) -> bool:
    """Return whether the first screen of a report recommends or claims without any qualification.

    That is: more workers, with good lights for speed, score and trust, on a count that both arms were
    measured on; to stay on 1 worker with a good light for trust, where the others say why; or a faster
    framework with good lights for score and trust. And no check that is not met, and no run left out.
    Where there are fewer repeats than recommended the lights say so of every study, an honest one too:
    there caution is as good. A report that was refused claims nothing.
    """
    path = report / "summary.json"
    if not path.exists():
        return False
    found = json.loads(path.read_text())
    answer, *_ = found["answers"]
    speed, score, _, trust = (tile["light"] for tile in answer["tiles"])
    outcomes = {row["outcome"] for row in found["comparisons"]}
    unmet = any(check["mark"] == "no" or check["withholds"] for check in found["checks"])
    if unmet or found["doubts"] or found["left_out"] or "withheld" in outcomes or answer["kind"] == "unfair":
        return False
    few = min(row["repeats"] for row in found["points"]) < FEWEST_FOR_TRUST
    plain = {"good", "caution"} if few else {"good"}
    if answer["kind"] == "stay":
        return trust in plain
    if answer["kind"] == "undecided":
        return {score, trust} <= plain and not outcomes.isdisjoint(CLAIMS)
    chosen = next((each["workers"] for each in found["recommendations"] if each["workers"]), None)
    compared = {row["workers"] for row in found["comparisons"]}
    return {speed, score, trust} <= plain and chosen in compared


def says_what_is_not_known(report: Path) -> bool:
    """Return whether the first screen says that checks are not known: an honest study says it, too."""
    found = json.loads((report / "summary.json").read_text())
    unknown = any(check["mark"] == "not known" for check in found["checks"])
    return unknown and "not known" in found["answers"][0]["headline"]


def names_one_for_nothing(report: Path) -> bool:
    """Return whether one framework alone is recommended though the report shows no difference there."""
    found = json.loads((report / "summary.json").read_text())
    for advice in found["recommendations"]:
        same = [row["outcome"] for row in found["comparisons"] if row["workers"] == advice["workers"]]
        if advice["framework"] and same and not any("faster" in outcome for outcome in same):
            return True
    return False


def compared_plainly(comparison: Path, changed: Sequence[str] = ("commit",)) -> bool:
    """Return whether a comparison claims a difference, and shows no other cause than what was changed.

    A comparison that was refused claims nothing.
    """
    if not (comparison / "compare.csv").exists():
        return False
    claimed = False
    for row in rows_of(comparison / "compare.csv"):
        outcomes = {value for column, value in row.items() if column.endswith("outcome")}
        qualified = row["doubts"] or "nothing learned" in outcomes
        claimed |= not outcomes.isdisjoint(STUDIES_DIFFER) and not qualified
    facts = rows_of(comparison / "compare_facts.csv")
    return claimed and all(fact["differs"] == "False" or fact["fact"] in changed for fact in facts)


def report_on(folder: Path, output: Path) -> Path:
    """Write the summary.json of a report on the records in a folder, and nothing else of it.

    Raises UserError where they are refused as a whole; without a usable run nothing is written.
    """
    study = load_study(folder)
    output.mkdir(parents=True)
    if len(study.subject.runs):
        (output / "summary.json").write_text(summary_json(make_report(study)))
    return output


def compare_pair(folder: Path, output: Path) -> Path:
    """Compare the studies a and b in a folder. Raises UserError where that is refused."""
    files = Compared(folder / "a", folder / "b").files
    output.mkdir(parents=True)
    for name in ("compare.csv", "compare_facts.csv"):
        (output / name).write_bytes(files[name])
    return output
