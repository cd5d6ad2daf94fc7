"""Tables of the overhead budget: causes, parts, and what the network can do."""

from analysis.budget.diagnosis import diagnosis_table
from analysis.loading.ping_pongs import pair_table
from analysis.report import page_columns as shown
from analysis.report.table import PAIR_KEYS, POINT_KEYS, PageTable, Table

OVERHEAD_PARTS = {
    "data_wait ±": "until a batch is where it is used, host to device included",
    "compute ±": "forward and backward",
    "wire ±": "the smallest sync of each step",
    "imbalance ±": "waiting for a slower worker, in a step or at the end of an epoch",
    "optimizer ±": "",
    "unequal_work ±": "0 where the images prove equal work; else the row is not there",
    "rest ±": "what no phase explains",
}

OVERHEAD_TABLES = (
    Table(
        "diagnosis.csv",
        lambda report: diagnosis_table(report.diagnoses),
        {
            "rule": "its name",
            "options, framework, knobs, workers": "the point",
            "at_stake ±": "share of the workers' time that it is about",
            "finding, evidence, try_next": "what is so, the numbers that show it, the knob or study to try",
        },
        "One row per finding, most at stake first.",
        PageTable(
            "budget", "Causes of the lost efficiency, most at stake first", shown.of_diagnoses, leads=True
        ),
    ),
    Table(
        "budget.csv",
        lambda report: report.overhead.budget,
        POINT_KEYS
        | {"repeats": "launches that are used", "deviation ±": "1 - efficiency: the sum of the parts"}
        | OVERHEAD_PARTS
        | {
            "contended ±": "data_wait and compute together, no further part: what competing threads slow",
            "rest_of_step": "share of a step that no phase explains",
        },
        "1 - efficiency in parts that sum to it; shares of the workers' time ([budget.md](budget.md)). "
        "Points without an overhead budget have no row.",
        PageTable(
            "budget",
            "1 - efficiency in parts",
            shown.of_budget,
        ),
    ),
    Table(
        "difference.csv",
        lambda report: report.overhead.differences,
        PAIR_KEYS
        | {"difference ±": "ratio of throughputs, native DDP / Horovod, less 1: the sum of the parts"}
        | OVERHEAD_PARTS,
        "What Horovod needs more time for than native DDP, in shares of native DDP's time per image. "
        "Negative: less.",
        PageTable(
            "budget",
            "What Horovod needs more time for than native DDP, in shares of native DDP's time per {sample}",
            shown.of_difference,
        ),
    ),
    Table(
        "network.csv",
        lambda report: report.overhead.network,
        POINT_KEYS
        | {
            "repeats": "launches that are used",
            "gradient_bytes": "of one step, float32",
            "wire_seconds ±": "of one step, measured",
            "floor_seconds ±": "one message of all gradients over the probed network",
            "latency_seconds ±": "of a message without content",
            "bytes_per_second ±": "of the largest message that was timed",
            "hosts_floor_seconds": "what MPI alone needs between the run's hosts, by ping-pongs, if any",
        },
        page=PageTable("budget", shown.NETWORK_CAPTION, shown.of_network),
    ),
    Table(
        "ping_pong.csv",
        lambda report: report.study.ping_pongs,
        {
            "measured_for": "the folder of the run or allocation before which it was measured",
            "host, other_host": "the pair, by name",
            "medium": "`network`, or `shared memory` where both are one host",
            "latency_seconds": "half of there and back, of 1 byte",
            "bytes_per_second": "of the largest message",
        },
        "One row per pair of hosts and job (`ping_pong = true` in the cluster file), empty without.",
        PageTable(
            "budget",
            "MPI between two hosts, one message at a time, before the runs",
            shown.of_ping_pongs,
            pair_table,
        ),
    ),
)
