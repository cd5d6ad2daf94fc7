"""Give a study more repeats: as many as the user asks for, or until its intervals are as narrow as it asks.

Whether they are is decided by the analysis, in a process of its own (analysis/judge/decide.py).
"""

import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from typing import Any

from rich.console import Console

from slurm.launch.estimate import name_point
from slurm.launch.study_folder import StudyFolder, include_added_repeats
from unet_scaling.base.errors import UserError
from unet_scaling.study.config import PROJECT, StudyConfig
from unet_scaling.study.repeats import FEWEST_ADAPTIVE_REPEATS, note_look, read_history
from unet_scaling.study.study_file import recorded_study


def note_changed_request(folder: StudyFolder, console: Console) -> StudyFolder:
    """Return the study with all repeats that it has; note where it asks for more than when it had results.

    Whoever raises `repeats` in the file of a study after it has results has looked at them, as with
    --more-repeats; whoever adds other points has not. The caller holds the lock of the study, and has not
    made its run folders.
    """
    before = recorded_study(folder.path)
    if before is None:
        return folder
    now = folder.study
    by_hand = _asks_for_more(before, now)
    left_until = before.until is not None and now.until is None
    if not (by_hand or left_until) or not _has_results(StudyFolder(folder.path, before), now):
        return folder
    folder.require_same()
    total = max(before.repeats, now.repeats)
    note_look(folder.path, before.repeats, total, by_hand=by_hand, adaptive=before.until is not None)
    if by_hand:
        console.print(
            f"more is asked for after the results of {before.repeats} repeats: intervals of the ratio become "
            "wider for that, as after --more-repeats"
        )
    return replace(folder, study=include_added_repeats(folder.path, now))


def add_repeats(folder: StudyFolder, more: int, console: Console) -> StudyFolder:
    """Return the study with so many more repeats; those added before are completed first.

    Raises UserError where no repeats were added before and the study is not complete.
    """
    if _is_complete(folder):
        return _grown(folder, more, by_hand=True)
    if len(read_history(folder.path).totals) < 2:
        raise UserError(
            f"--more-repeats {more}: {folder.path} is not complete; complete it first, by the same command "
            "without --more-repeats"
        )
    console.print("the repeats that were added before are not complete; going on with them, adding none")
    return folder


def add_next_repeat(folder: StudyFolder, console: Console) -> StudyFolder | None:
    """Return the study with one more repeat where its `until` asks for it, else None.

    None also where runs are missing, or where complete runs may not be compared: more of them give no
    interval either. Raises UserError where the analysis fails. The caller holds the lock of the study, so
    that no two add the same repeat.
    """
    until = folder.study.until
    if until is None or not _is_complete(folder):
        return None
    command = [sys.executable, "-m", "analysis.judge.decide", str(folder.path.resolve())]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True)
    if done.returncode != 0:
        reason = done.stderr.strip().removeprefix("error: ")
        raise UserError(f"whether more repeats are needed cannot be said: {reason}", done.returncode)
    precision: dict[str, Any] = json.loads(done.stdout)
    console.print(f"repeats = {str(until)!r}: {precision['sentence']}")
    return _grown(folder, 1, by_hand=False) if precision["goes_on"] else None


def _grown(folder: StudyFolder, more: int, *, by_hand: bool) -> StudyFolder:
    study = folder.study
    total = study.repeats + more
    note_look(folder.path, study.repeats, total, by_hand=by_hand, adaptive=study.until is not None)
    return replace(folder, study=study.model_copy(update={"repeats": total}))


def _asks_for_more(before: StudyConfig, now: StudyConfig) -> bool:
    if now.repeats > before.repeats:
        return True
    if now.until is None:
        return False
    if before.until is None:
        return True
    return now.until.half_width < before.until.half_width or now.until.most > before.until.most


def _has_results(folder: StudyFolder, now: StudyConfig) -> bool:
    """Return whether any point of the new study has enough complete runs for an interval."""
    asked = {name_point(config) for config in now.configs()}
    complete = Counter(
        name_point(config)
        for config in folder.study.configs()
        if name_point(config) in asked and folder.read_run(config).state.is_complete
    )
    return max(complete.values(), default=0) >= FEWEST_ADAPTIVE_REPEATS


def _is_complete(folder: StudyFolder) -> bool:
    return all(folder.read_run(config).state.is_complete for config in folder.study.configs())
