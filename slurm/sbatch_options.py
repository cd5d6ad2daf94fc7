"""Refuse options of sbatch that the submission itself sets, however a cluster file spells them.

sbatch reads #SBATCH lines with getopt_long: a long name may be cut short as long as it stays unique, and
short options may be joined with each other and with their value (-HJname).
"""

import re

_GEOMETRY = "it follows from `workers` of the study and `gpus_per_node` of this file"
_GPUS = "use `gpus_per_node` and `gres`"
_OUTPUT = "output.log in the folder of the run takes all output"
_NOT_A_SUBMISSION = "the job would not be submitted"

# Every long option that decides what the submission itself decides, and what to use instead.
OWN_OPTIONS = {
    "account": "use `account`",
    "array": "every run is one job; `repeats` of the study gives further launches",
    "chdir": "a job starts in the folder of its run",
    "cluster": "use `cluster_name`",
    "clusters": "use `cluster_name`",
    "cpus-per-gpu": "use `cores_per_worker`",
    "cpus-per-task": "use `cores_per_worker`",
    "error": _OUTPUT,
    "export": "set variables of the workers in the table `environment`",
    "export-file": "set variables of the workers in the table `environment`",
    "gid": "submit as the user whose jobs they are",
    "gpus": _GPUS,
    "gpus-per-node": _GPUS,
    "gpus-per-socket": _GPUS,
    "gpus-per-task": _GPUS,
    "gres": _GPUS,
    "help": _NOT_A_SUBMISSION,
    "job-name": "the submission finds its jobs by their names",
    "no-requeue": "use `requeue = false`",
    "nodes": _GEOMETRY,
    "ntasks": _GEOMETRY,
    "ntasks-per-gpu": _GEOMETRY,
    "ntasks-per-node": _GEOMETRY,
    "ntasks-per-tres": _GEOMETRY,
    "open-mode": _OUTPUT,
    "output": _OUTPUT,
    "overcommit": "every worker has cores of its own: use `cores_per_worker`",
    "parsable": "the submission itself reads the answer of sbatch",
    "partition": "use `partition`",
    "requeue": "use `requeue = true`",
    "signal": "use `stop_seconds`",
    "tasks-per-node": _GEOMETRY,
    "test-only": f"{_NOT_A_SUBMISSION}; use --dry-run of unet-scaling submit",
    "time": "use `time`",
    "time-min": "Slurm would choose another limit, and runs would not stop before it: use `time`",
    "tres-per-task": _GPUS,
    "uid": "submit as the user whose jobs they are",
    "usage": _NOT_A_SUBMISSION,
    "version": _NOT_A_SUBMISSION,
    "wait": "use --wait of unet-scaling submit",
    "wrap": "the submission writes the script itself",
}
LONG_NAMES = {
    "A": "account", "a": "array", "D": "chdir", "M": "clusters", "c": "cpus-per-task", "e": "error",
    "G": "gpus", "h": "help", "J": "job-name", "N": "nodes", "n": "ntasks", "O": "overcommit", "o": "output",
    "p": "partition", "t": "time", "u": "usage", "V": "version", "W": "wait",
}  # fmt: skip
# Short options of sbatch without a value: the next letter is an option of its own.
SHORT_FLAGS = "hsuvHIOQVW"
# Long options without a value, or with one that may be left out, as that of -k.
FLAGS = (
    "consolidate-segments", "contiguous", "disable-stdout-job-summary", "exclusive", "get-user-env", "hold",
    "ignore-pbs", "immediate", "nice", "no-kill", "oom-kill-step", "oversubscribe", "propagate", "quiet",
    "reboot", "share", "spread-job", "spread-segments", "stepmgr", "use-min-nodes", "verbose",
)  # fmt: skip


def require_free(option: str) -> None:
    """Raise ValueError where a word is no option of sbatch, or means one that the submission sets."""
    name = _own_name(option)
    if name is not None:
        raise ValueError(f"{option!r} sets --{name}, as the submission does: {OWN_OPTIONS[name]}")
    if _lacks_value(option):
        raise ValueError(f"{option!r} would take the next option as its value: write --NAME=VALUE or -XVALUE")


def _own_name(option: str) -> str | None:
    """Return the name of OWN_OPTIONS that sbatch could take this word for, or None."""
    long = re.match(r"--([A-Za-z][A-Za-z0-9-]*)", option)
    if long:
        return _completed(long.group(1))
    if re.match(r"-[A-Za-z]", option):
        return _own_letter(option[1:])
    raise ValueError(f"{option!r} is not an option of sbatch: write '--NAME=VALUE', '--NAME' or '-X'")


def _lacks_value(option: str) -> bool:
    if option.startswith("--"):
        return "=" not in option and not any(flag.startswith(option[2:]) for flag in FLAGS)
    letters = option[1:].lstrip(SHORT_FLAGS)
    return len(letters) == 1 and letters != "k"


def _completed(name: str) -> str | None:
    """Return the option of which `name` is the whole or the beginning; where it is of several, the first."""
    if name in OWN_OPTIONS:
        return name
    return next((own for own in OWN_OPTIONS if own.startswith(name)), None)


def _own_letter(letters: str) -> str | None:
    """Return what the first letter of OWN_OPTIONS stands for among joined short options."""
    for letter in letters:
        if letter in LONG_NAMES:
            return LONG_NAMES[letter]
        if letter not in SHORT_FLAGS:
            return None
    return None
