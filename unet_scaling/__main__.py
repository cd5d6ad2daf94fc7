"""The command `unet-scaling`; its subcommands are in subcommands.py, which an old Python cannot even read."""

import gc
import os
import signal

from unet_scaling import require_packages


def run_command() -> None:
    """Run the subcommand that the command line names: what the installed command calls."""
    # Not where whoever started it has told it to ignore Ctrl-C. An import may swallow the usual exception.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)
    require_packages()
    # A command lives for seconds and keeps most of what it reads: to search for garbage every 700 objects
    # takes a third of the time in which the records of 10,000 runs are read.
    gc.set_threshold(100_000)
    from unet_scaling.base.errors import run_program
    from unet_scaling.subcommands import main

    run_program(main)


def _end(*_: object) -> None:
    """End at once where Ctrl-C comes before the subcommand is imported."""
    os.write(2, b"error: stopped by the keyboard\n")
    os._exit(130)


if __name__ == "__main__":
    run_command()
