"""The command `unet-scaling`; its subcommands are in subcommands.py, which an old Python cannot even read."""

from unet_scaling.interpreter import require_packages


def run_command() -> None:
    """Run the subcommand that the command line names: what the installed command calls."""
    require_packages()
    from unet_scaling.study.errors import run_program
    from unet_scaling.subcommands import main

    run_program(main)


if __name__ == "__main__":
    run_command()
