"""Give a study more repeats: as many as the user asks for, or until its intervals are as narrow as it asks.

Whether they are is decided by the analysis, in a process of its own (analysis/findings/precision.py).
"""

import json
import subprocess
import sys
from dataclasses import replace
from typing import Any

from rich.console import Console

from slurm.study_folder import StudyFolder
from unet_scaling.study.config import PROJECT
from unet_scaling.study.errors import UserError
from unet_scaling.study.repeats import Precision, add_total, read_totals
from unet_scaling.study.texts import count


def add_repeats(folder: StudyFolder, more: int, console: Console) -> StudyFolder:
    """Return the study with so many more repeats; those added before are completed first.

    Raises UserError where no repeats were added before and the study is not complete.
    """
    if _is_complete(folder):
        return _grown(folder, folder.study.repeats + more)
    if len(read_totals(folder.path)) < 2:
        raise UserError(
            f"--more-repeats {more}: {folder.path} is not complete; complete it first, by the same command "
            "without --more-repeats"
        )
    console.print("the repeats that were added before are not complete; going on with them, adding none")
    return folder


def next_block(folder: StudyFolder, console: Console) -> StudyFolder | None:
    """Return the study with one more repeat where its `until` asks for it; None where not, or not yet.

    Nor where complete runs give no interval at all, as they may not be compared: more would only cost time.

    The study is locked by the caller, so that no two add the same repeat.
    """
    until = folder.study.until
    if until is None or not _is_complete(folder):
        return None
    console.print(f"repeats = {str(until)!r}: {_width_text(precision := _ask(folder), until)}")
    if precision["half_width"] is None:
        console.print("more repeats would not give one: the report lists which runs it leaves out, and why")
        return None
    if precision["narrow"]:
        return None
    if folder.study.repeats >= until.most:
        console.print(f"{until.most} repeats are the most that the study allows: it ends here")
        return None
    return _grown(folder, folder.study.repeats + 1)


def _grown(folder: StudyFolder, total: int) -> StudyFolder:
    add_total(folder.path, folder.study.repeats, total)
    return replace(folder, study=folder.study.model_copy(update={"repeats": total}))


def _is_complete(folder: StudyFolder) -> bool:
    return all(folder.recorded(config).state.is_complete for config in folder.study.configs())


def _ask(folder: StudyFolder) -> dict[str, Any]:
    """Return what the analysis says of the intervals. Raises UserError where it says nothing."""
    command = [sys.executable, "-m", "analysis.findings.precision", str(folder.path.resolve())]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True)
    if done.returncode != 0:
        reason = done.stderr.strip().removeprefix("error: ")
        raise UserError(f"whether more repeats are needed cannot be said: {reason}", done.returncode)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _width_text(precision: dict[str, Any], until: Precision) -> str:
    repeats = count(precision["repeats"], "repeat")
    if precision["half_width"] is None:
        return f"after {repeats}, no interval {precision['where']}"
    width = f"± {100 * precision['half_width']:.1f} %"
    verdict = "narrow enough" if precision["narrow"] else f"more than ± {100 * until.half_width:g} %"
    return f"after {repeats}, the widest interval of the ratio is {width} ({precision['where']}), {verdict}"
