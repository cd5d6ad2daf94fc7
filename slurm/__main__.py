"""What slurm/submission.sh runs: a study on Slurm or on this machine, its status, its end; the doctor.

`unet-scaling` has the same commands: run, submit, status, cancel, doctor. Each is a file of slurm/commands/.
"""

import sys
from collections.abc import Callable
from pathlib import Path

from slurm.commands import cancel, doctor, status
from slurm.commands.options import add_launch, add_queue, add_study
from slurm.commands.run import run_on_this_machine
from slurm.commands.submit import submit_to_slurm
from unet_scaling.study.command_line import CommandLine
from unet_scaling.study.errors import run_program

PROGRAM = "slurm/submission.sh"
COMMANDS: dict[str, Callable[[], int | None]] = {
    "status": status.main,
    "cancel": cancel.main,
    "doctor": doctor.main,
}
_EPILOG = f"""\
examples
  {PROGRAM} slurm/studies/demo.toml --local
  {PROGRAM} MY_STUDY.toml --cluster slurm/clusters/MINE.toml --dry-run
  {PROGRAM} MY_STUDY.toml --cluster slurm/clusters/MINE.toml --wait
  {PROGRAM} status MY_STUDY        one table of all runs; --json, --watch
  {PROGRAM} cancel MY_STUDY        end this study's jobs, and no others
  {PROGRAM} doctor --cluster slurm/clusters/MINE.toml        half a minute that tries the launch itself

Submitting again is always safe: only what is missing, failed or interrupted is submitted.
"""


def main() -> int | None:
    command = COMMANDS.get(sys.argv[1]) if len(sys.argv) > 1 else None
    if command is not None:
        sys.argv = sys.argv[1:]
        return command()
    arguments = command_line().parse_args()
    start = run_on_this_machine if arguments.local else submit_to_slurm
    start(arguments)
    return None


def command_line() -> CommandLine:
    parser = CommandLine(PROGRAM, "Run every run of a study that is missing, failed or interrupted.", _EPILOG)
    add_study(parser)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument(
        "--cluster", type=Path, metavar="CLUSTER.toml", help="submit to Slurm; see slurm/clusters/"
    )
    where.add_argument("--local", action="store_true", help="run on this machine with mpiexec, without Slurm")
    add_launch(parser)
    add_queue(parser)
    return parser


if __name__ == "__main__":
    run_program(main)
