"""Serve the network of a complete run over HTTP: POST an image, get the PNG of its mask.

Requests that wait pass through the network together. With --measure, requests are sent at random moments at
several rates, with several batch sizes and waits, and what each gave is printed and written.
"""

import argparse
import math
from importlib import import_module
from pathlib import Path

from unet_scaling.base.command_line import CommandLine
from unet_scaling.base.errors import optional_part
from unet_scaling.base.validation import positive

_LAST_PORT = 65535
_EPILOG = """\
examples
  unet-scaling serve logs/MY_STUDY/pytorch_native-w02-r1
  curl --data-binary @cells.png --output mask.png http://127.0.0.1:8000
  unet-scaling serve logs/MY_STUDY/pytorch_native-w02-r1 --measure $WORK/images --output $WORK/serving

Whoever reaches the address is served: there is no encryption and no password. Installed by
environment/install.sh --with serve.
"""


def main() -> None:
    parser = command_line()
    arguments = parser.parse_args()
    if (arguments.measure is None) != (arguments.output is None):
        parser.error("--measure and --output go together")
    if arguments.goal is not None and not arguments.measure:
        parser.error("--goal is for --measure")
    with optional_part("unet-scaling serve", "serve"):
        from unet_scaling.inference import load, server
    if arguments.measure:
        chosen = {"--any-depth": arguments.any_depth, "--resize": arguments.resize}
        options = [option for option, is_chosen in chosen.items() if is_chosen]
        table = load.measure_latency(
            arguments.run, arguments.measure, arguments.output, arguments.goal, *options
        )
        # Import by name, as unet_scaling/subcommands.py does: the library does not import the analysis.
        drawn = import_module("analysis.figures.serving").draw_latencies(table)
        print(f"{table}, drawn in {drawn}")
        return
    server.serve(
        arguments.run,
        arguments.host,
        arguments.port,
        batch=arguments.batch,
        wait_ms=arguments.wait,
        queue=arguments.queue,
        any_depth=arguments.any_depth,
        resize=arguments.resize,
    )


def command_line() -> CommandLine:
    parser = CommandLine("unet-scaling serve", __doc__, _EPILOG)
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a complete run: logs/STUDY/RUN")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at (default: %(default)s)")
    parser.add_argument("--port", type=_port, default=8000, help="0 for a free one (default: %(default)s)")
    batch = "most images that pass through the network at once (default: %(default)s)"
    parser.add_argument("--batch", type=positive, default=8, metavar="N", help=batch)
    wait = "longest that an image waits for others while the network is free (default: 0)"
    parser.add_argument("--wait", type=_milliseconds, default=0.0, metavar="MS", help=wait)
    queue = "most requests at a time; further ones get 429 (default: %(default)s)"
    parser.add_argument("--queue", type=positive, default=64, metavar="N", help=queue)
    any_depth = "take images of another kind or depth than the run was trained on"
    parser.add_argument("--any-depth", action="store_true", help=any_depth)
    resize = "bring every image to the size of training, not to its scale"
    parser.add_argument("--resize", action="store_true", help=resize)
    measuring = parser.add_argument_group("to measure, without serving anybody else")
    measuring.add_argument("--measure", type=Path, metavar="IMAGES", help="folder of images to send")
    measuring.add_argument("--output", type=Path, metavar="FOLDER", help="for serving.csv")
    goal = "name the setting that answers 99 %% of the requests within this time"
    measuring.add_argument("--goal", type=_milliseconds, metavar="MS", help=goal)
    return parser


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > _LAST_PORT:
        raise argparse.ArgumentTypeError(f"found {text!r}; allowed: 0 to {_LAST_PORT}")
    return int(text)


def _milliseconds(text: str) -> float:
    """Return a number of milliseconds, 0 or more."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"found {text!r}; allowed: 0 or more milliseconds")
    return value
