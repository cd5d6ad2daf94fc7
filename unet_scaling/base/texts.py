"""Write counts, durations, digests and commands for people.

Needs the standard library only, as what --help and --version import.
"""

import difflib
import hashlib
import re
import shlex
import shutil
import sys
import time
import unicodedata
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import TypeVar

from unet_scaling import IS_CLONE, PROJECT

# Words in the names of scores of which less is better.
WORDS_OF_LOSSES = re.compile(
    r"(?<![a-z])(bp[cd]|brier|[ctw]er|cost|dist(ances?)?|divergence|entropy|err(ors?)?|fid|hausdorff|kl|nll|"
    r"loss(es)?|s?mape|mae|miss(es)?|r?msl?e|perplexity|ppl|regret|residuals?|risk)(?![a-z])"
)
# How alike two names have to be, from 0 to 1, for one to be taken for a slip of the other.
NEAR = 0.6
_Result = TypeVar("_Result")
AnError = TypeVar("AnError", bound=Exception)
# The program of all commands; the first word of sys.argv where one of them runs.
COMMAND = "unet-scaling"
PASTED = f".venv/bin/{COMMAND}" if IS_CLONE else COMMAND
# How it was called, from wherever: a hint can be pasted where the user stands.
CALLED = PASTED if Path.cwd() == PROJECT or not IS_CLONE else f"{PROJECT}/{PASTED}"
if Path(sys.argv[0]).name == COMMAND:
    CALLED = COMMAND if shutil.which(COMMAND) == sys.argv[0] else sys.argv[0]
# Helps wherever GPUs cannot be used.
HIDE = "compare on CPU cores (CUDA_VISIBLE_DEVICES=)"
LAUNCH_HINT = f"{CALLED} run STUDY.toml (on Slurm: submit)"


def clean(text: object) -> str:
    """Return a foreign text on one line, without characters that steer a terminal or turn its direction."""
    if str(text).isprintable():
        return str(text)
    spaced = re.sub(r"[\t\r\n\v\f\x85\u2028\u2029]+", " ", str(text))
    return "".join(letter for letter in spaced if unicodedata.category(letter) not in ("Cc", "Cf", "Cs"))


def count(number_of: int, thing: str) -> str:
    """Return "1 run", "2 runs", "3 launches"."""
    ending = "es" if thing.endswith(("ch", "ss")) else "s"
    return f"{number_of:,} {thing}{'' if number_of == 1 else ending}"


def duration(seconds: float) -> str:
    """Return seconds in the unit that reads best: "90 s", "45 min", "2.5 h"."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def did_you_mean(name: str, known: Collection[str]) -> str:
    """Return "did you mean ...? " with the known name nearest to this one; empty where none is near."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=NEAR)
    return f"did you mean {near[0]}? " if near else ""


def short_digest(text: str, characters: int = 8) -> str:
    """Return the beginning of the SHA-256 of a text: enough to tell a few names apart."""
    # A path has the same digest where the locale has no UTF-8, and Python escapes its bytes.
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:characters]


def score_title(name: str) -> str:
    """Return what sentences call the score of this name in the record: "IoU", "token accuracy"."""
    return "IoU" if name == "iou" else name.replace("one_minus_", "1 - ").replace("_", " ")


def retry(
    call: Callable[[], _Result],
    pauses_seconds: Iterable[float],
    error_type: type[AnError],
    may_pass: Callable[[AnError], bool] | None = None,
    announce: Callable[[AnError, float], None] | None = None,
) -> _Result:
    """Return what `call` returns; after an error that may pass, wait for the next pause and call again.

    Raises the error of the last call, and at once every error that cannot pass. `announce` is called with
    the error and the pause in seconds before each pause.
    """
    for pause in pauses_seconds:
        try:
            return call()
        except error_type as error:
            if may_pass and not may_pass(error):
                raise
            if announce:
                announce(error, pause)
        time.sleep(pause)
    return call()


def called(*words: object) -> str:
    """Return a command as it can be pasted where the user stands."""
    return shlex.join([CALLED, *map(str, words)])
