"""The command `unet-scaling`; its subcommands are in subcommands.py, which an old Python cannot even read."""

import gc

from unet_scaling import require_packages


def run_command() -> None:
    """Run the subcommand that the command line names: what the installed command calls."""
    require_packages()
    # A command lives for seconds and keeps most of what it reads: to search for garbage every 700 objects
    # takes a third of the time in which the records of 10,000 runs are read.
    gc.set_threshold(100_000)
    from unet_scaling.base.errors import run_program
    from unet_scaling.subcommands import main

    run_program(main)


if __name__ == "__main__":
    run_command()
