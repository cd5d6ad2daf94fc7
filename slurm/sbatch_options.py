"""Refuse options of sbatch that the submission itself sets, however a cluster file spells them.

sbatch reads #SBATCH lines with getopt_long: a long name may be cut short as long as it stays unique, and
short options may be joined with each other and with their value.
"""

import re

# What to do instead of setting an option, and the options that the submission sets so itself.
_CURES = {
    "use `account`": ("account",),
    "`repeats` of the study gives further launches": ("array",),
    "a job starts in the folder of its run": ("chdir",),
    "use `cluster_name`": ("cluster", "clusters"),
    "use `cores_per_worker`": ("cpus-per-gpu", "cpus-per-task", "overcommit"),
    "output.log in the folder of the run takes all output": ("error", "open-mode", "output"),
    "use the table `environment`": ("export", "export-file"),
    "submit as the user whose jobs they are": ("gid", "uid"),
    "use `gpus_per_node` and `gres`": (
        "gpus", "gpus-per-node", "gpus-per-socket", "gpus-per-task", "gres", "tres-per-task",
    ),
    "the job would not be submitted": ("help", "usage", "version"),
    "the submission finds its jobs by their names": ("job-name",),
    "it follows from `workers` of the study and `gpus_per_node`": (
        "nodes", "ntasks", "ntasks-per-gpu", "ntasks-per-node", "ntasks-per-tres", "tasks-per-node",
    ),
    "the submission writes the script and reads sbatch's answer": ("parsable", "wrap"),
    "use `partition`": ("partition",),
    "use `requeue`": ("no-requeue", "requeue"),
    "use `stop_seconds`": ("signal",),
    "use --dry-run of unet-scaling submit": ("test-only",),
    "use `time`": ("time", "time-min"),
    "use --wait of unet-scaling submit": ("wait",),
}  # fmt: skip
OWN_OPTIONS = {name: cure for cure, names in _CURES.items() for name in names}
LONG_NAMES = {
    "A": "account", "a": "array", "D": "chdir", "M": "clusters", "c": "cpus-per-task", "e": "error",
    "G": "gpus", "h": "help", "J": "job-name", "N": "nodes", "n": "ntasks", "O": "overcommit", "o": "output",
    "p": "partition", "t": "time", "u": "usage", "V": "version", "W": "wait",
}  # fmt: skip
# Short options of sbatch without a value: the next letter would be an option of its own.
SHORT_FLAGS = "hsuvHIOQVW"
# Long options without a value, or with one that may be left out, as that of -k.
FLAGS = (
    "consolidate-segments", "contiguous", "disable-stdout-job-summary", "exclusive", "get-user-env", "hold",
    "ignore-pbs", "immediate", "nice", "no-kill", "oom-kill-step", "oversubscribe", "propagate", "quiet",
    "reboot", "share", "spread-job", "spread-segments", "stepmgr", "use-min-nodes", "verbose",
)  # fmt: skip


def free_option(option: str) -> str:
    """Return the option; raises ValueError where it is none of sbatch, or one that the submission sets."""
    matched = re.fullmatch(r"--([A-Za-z][A-Za-z0-9-]*)(=.*)?|-([A-Za-z])(.*)", option)
    if matched is None:
        raise ValueError(f"{option!r} is not an option of sbatch: write '--NAME=VALUE', '--NAME' or '-X'")
    long, value, letter, rest = matched.groups()
    if letter:
        own = LONG_NAMES.get(letter)
        is_flag = letter in SHORT_FLAGS or letter == "k"
    else:  # of the names that this may be the beginning of, itself is the shortest
        own = min((name for name in OWN_OPTIONS if name.startswith(long)), key=len, default=None)
        is_flag = any(flag.startswith(long) for flag in FLAGS)
    if letter and letter in SHORT_FLAGS and rest:
        raise ValueError(f"{option!r} joins several options: write each by itself")
    if own is not None:
        raise ValueError(f"{option!r} sets --{own}, as the submission does: {OWN_OPTIONS[own]}")
    if not (is_flag or value or rest):
        raise ValueError(f"{option!r} would take the next option as its value: write --NAME=VALUE or -XVALUE")
    return option
