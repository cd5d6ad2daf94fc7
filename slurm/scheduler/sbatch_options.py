"""Options of sbatch that a cluster file may add, and those that the submission sets itself."""

import re

# The options that the submission sets itself, by what to do instead.
_CURES = {
    "use `account`": "account",
    "`repeats` of the study gives further launches": "array",
    "a job starts in the folder of its run": "chdir",
    "use `cluster_name`": "cluster clusters",
    "use `cores_per_worker`": "cpus-per-gpu cpus-per-task overcommit",
    "output.log in the folder of the run takes all output": "error open-mode output",
    "use the table `environment`": "export export-file",
    "use `gpus_per_node` and `gres`": "gpus gpus-per-node gpus-per-socket gres",
    "the submission finds its jobs by their names": "job-name",
    "it follows from `workers` of the study and `gpus_per_node`":
        "nodes ntasks ntasks-per-gpu ntasks-per-node ntasks-per-tres tasks-per-node",
    "the submission writes the script and reads sbatch's answer": "parsable wrap",
    "use `partition`": "partition",
    "use `requeue`": "no-requeue requeue",
    "use `stop_seconds`": "signal",
    "use --dry-run of unet-scaling submit": "test-only",
    "use `time`": "time time-min",
    "use --wait of unet-scaling submit": "wait",
}  # fmt: skip
OWN_OPTIONS = {name: cure for cure, names in _CURES.items() for name in names.split()}
LONG_NAMES = {
    "A": "account", "a": "array", "D": "chdir", "M": "clusters", "c": "cpus-per-task", "e": "error",
    "G": "gpus", "J": "job-name", "N": "nodes", "n": "ntasks", "O": "overcommit", "o": "output",
    "p": "partition", "t": "time", "W": "wait",
}  # fmt: skip
# Short options of sbatch without a value: the next letter would be an option of its own.
SHORT_FLAGS = "hsuvHIOQVW"
# Long options without a value, or with one that may be left out, as that of -k.
FLAGS = (
    "consolidate-segments", "contiguous", "disable-stdout-job-summary", "exclusive", "get-user-env", "hold",
    "ignore-pbs", "immediate", "nice", "no-kill", "oom-kill-step", "oversubscribe", "propagate", "quiet",
    "reboot", "share", "spread-job", "spread-segments", "stepmgr", "use-min-nodes", "verbose",
)  # fmt: skip
OPTION = re.compile(r"--([A-Za-z][A-Za-z0-9-]*)(=.*)?|-([A-Za-z])(.*)")
# Options of sbatch or srun, whole or cut short, that show a task only some of its node's GPUs.
BINDS_GPUS = re.compile(
    r"--((gpus|tres)-per-t[a-z]*|(gpu-b|tres-b)[a-z]*[= ](gres/gpu:)?(?!(v(erbose)?,)?n(one)?(\s|$)))\S*"
)


def check_option(option: str) -> str:
    """Return the option; raises ValueError where it is none of sbatch, or one that the submission sets.

    sbatch reads #SBATCH lines with getopt_long: a long name may be cut short as long as it stays unique, and
    short options may be joined with each other and with their value.
    """
    matched = OPTION.fullmatch(option)
    long, value, letter, rest = matched.groups("") if matched else [""] * 4
    if matched is None or (letter and letter in SHORT_FLAGS and rest):
        raise ValueError(f"{option!r} is not one option of sbatch: write '--NAME=VALUE', '--NAME' or '-X'")
    refuse_gpu_binding([option])
    if letter:
        own = LONG_NAMES.get(letter)
        is_flag = letter in SHORT_FLAGS or letter == "k"
    else:  # the shortest of the names that begin so
        own = min((name for name in OWN_OPTIONS if name.startswith(long)), key=len, default=None)
        is_flag = any(flag.startswith(long) for flag in FLAGS)
    if own is not None:
        raise ValueError(f"{option!r} sets --{own}, as the submission does: {OWN_OPTIONS[own]}")
    if not (is_flag or value or rest):
        raise ValueError(f"{option!r} would take the next option as its value: write --NAME=VALUE or -XVALUE")
    return option


def as_one_word(option: str) -> str:
    """Return an option as people copy it, such as `#SBATCH --constraint "a&b"`, as --constraint=a&b."""
    matched = re.fullmatch(r" *(?:#SBATCH +)?(--[\w-]+|-[A-Za-z](?= ))(?:=| +|$)(.*)", option)
    if matched is None:
        return option
    name, value = matched.groups()
    quoted = re.fullmatch(r"(['\"])(.*)\1", value)
    return f"{name}{'=' if name.startswith('--') and value else ''}{quoted.group(2) if quoted else value}"


def refuse_gpu_binding(words: list[str]) -> list[str]:
    """Return the words of a command; raises ValueError where they hide GPUs of its node from a worker."""
    found = BINDS_GPUS.search(" ".join(words))
    if found:
        raise ValueError(
            f"{found.group()!r} hides GPUs of its node from a worker, which can take peer-to-peer away: "
            "leave it out, or write --gpu-bind=none; each worker takes the GPU of its local rank"
        )
    return words
