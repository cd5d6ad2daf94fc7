"""Launch workers as a study would, for half a minute, and say what would keep them from training together.

Who belongs to whom by the launcher, by torch and by MPI; each worker's host, address, cores, device, clock
and versions; latency and bandwidth between hosts; the slowest node. Ends with 1 where it finds a fault.
"""

import json
from pathlib import Path

from slurm.cluster import read_cluster
from slurm.commands.options import add_logs, new_console
from slurm.doctor import examine_cluster, examine_here
from unet_scaling.doctor.findings import node_speeds, show, verdict
from unet_scaling.study.command_line import CommandLine
from unet_scaling.study.errors import EXIT_BUG, EXIT_OK, UserError
from unet_scaling.study.validation import positive

# The fewest that show whether workers find each other, and over a network.
DEFAULT_WORKERS = 2
DEFAULT_NODES = 2
_EPILOG = """\
examples
  unet-scaling doctor --local
  unet-scaling doctor --cluster slurm/clusters/MINE.toml
  unet-scaling doctor --cluster slurm/clusters/MINE.toml --nodes 7 --json
"""


def main() -> int:
    arguments = command_line().parse_args()
    console = new_console()
    if arguments.local:
        if arguments.nodes:
            raise UserError(f"--nodes {arguments.nodes}: this machine is one node; say --workers instead")
        found = examine_here(arguments.workers or DEFAULT_WORKERS)
    else:
        cluster = read_cluster(arguments.cluster)
        nodes = arguments.nodes or cluster.max_nodes or DEFAULT_NODES
        console.stderr = arguments.json
        workers = arguments.workers or nodes * cluster.gpus_per_node
        found = examine_cluster(cluster, workers, arguments.logs, console)
    if arguments.json:
        speeds = node_speeds(found.reports)
        content = {
            "verdict": verdict(found.reports, found.workers, found.findings),
            "faults": list(found.findings.faults),
            "warnings": list(found.findings.warnings),
            "workers": found.workers,
            "slowest_node": next(iter(speeds), None),
            "output": found.shown_output,
            "reports": [report.model_dump(mode="json") for report in found.reports],
        }
        print(json.dumps(content, indent=2))
    else:
        show(console, found.reports, found.workers, found.findings)
        for line in found.shown_output:
            console.print(f"output: {line}", style="dim", markup=False)
    return EXIT_BUG if found.findings.faults else EXIT_OK


def command_line() -> CommandLine:
    parser = CommandLine("unet-scaling doctor", __doc__, _EPILOG)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--cluster", type=Path, metavar="CLUSTER.toml", help="as a job of Slurm")
    where.add_argument("--local", action="store_true", help="on this machine with mpiexec, without Slurm")
    size = parser.add_mutually_exclusive_group()
    nodes = f"full nodes of the cluster (default: its max_nodes, or {DEFAULT_NODES})"
    size.add_argument("--nodes", type=positive, metavar="N", help=nodes)
    workers = f"instead of nodes (--local: {DEFAULT_WORKERS})"
    size.add_argument("--workers", type=positive, metavar="N", help=workers)
    parser.add_argument("--json", action="store_true", help="print verdict, findings and all reports as JSON")
    add_logs(parser)
    return parser
