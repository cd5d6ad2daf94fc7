"""Serve the network of a complete run over HTTP: POST an image, get the PNG of its mask.

Requests that wait pass through the network together. With --measure, requests are sent at random moments at
ever higher rates, batch size and wait are searched for a latency, and what each gave is printed and written.
"""

import argparse
import math
from importlib import import_module
from pathlib import Path

from unet_scaling.base.command_line import CommandLine
from unet_scaling.base.errors import optional_part
from unet_scaling.base.validation import positive
from unet_scaling.group.gpus import gpu_count

_LAST_PORT = 65535
# With fewer the 99th percentile has no upper end.
_FEWEST_REQUESTS = 400
_EPILOG = """\
examples
  unet-scaling serve logs/MY_STUDY/pytorch_native-w02-r1
  curl --data-binary @cells.png --output mask.png http://127.0.0.1:8000
  curl -F image=@cells.png --output mask.png http://127.0.0.1:8000
  unet-scaling serve logs/MY_STUDY/pytorch_native-w02-r1 --measure $WORK/images --output $WORK/serving

GET /health tells whether it is ready, /metrics what it did (for Prometheus), /openapi.json how it is asked.
There is no encryption, and without --token-file whoever reaches the address is served. Installed by
environment/install.sh --with serve.
"""


def main() -> None:
    parser = command_line()
    arguments = parser.parse_args()
    if (arguments.measure is None) != (arguments.output is None):
        parser.error("--measure and --output go together")
    for name in ("goal", "rate", "requests"):
        if getattr(arguments, name) is not None and not arguments.measure:
            parser.error(f"--{name} is for --measure")
    with optional_part("unet-scaling serve", "serve"):
        from unet_scaling.inference import load, server
    chosen = {"--any-depth": arguments.any_depth, "--resize": arguments.resize}
    options = [option for option, is_chosen in chosen.items() if is_chosen]
    options += ["--device", arguments.device] if arguments.device else []
    if arguments.measure:
        options += ["--replicas", str(arguments.replicas)] if arguments.replicas else []
        table = load.measure_latency(
            arguments.run,
            arguments.measure,
            arguments.output,
            options,
            goal_ms=arguments.goal or load.GOAL_MS,
            rate=arguments.rate,
            requests=arguments.requests or load.REQUESTS,
        )
        # Import by name, as unet_scaling/subcommands.py does: the library does not import the analysis.
        drawn = import_module("analysis.figures.serving").draw_latencies(table)
        print(f"{table}, drawn in {drawn}")
        return
    server.serve(
        arguments.run,
        arguments.host,
        arguments.port,
        options,
        replicas=arguments.replicas or _gpus_of(arguments.device),
        batch=arguments.batch,
        wait_ms=arguments.wait,
        queue=arguments.queue,
        most_seconds=arguments.timeout,
        token_file=arguments.token_file,
        access_log=arguments.access_log,
    )


def _gpus_of(device: str | None) -> int:
    """Return how many replicas there are without --replicas: one for each GPU that is asked for."""
    return max(1, gpu_count()) if device == "cuda" else 1


def command_line() -> CommandLine:
    parser = CommandLine("unet-scaling serve", __doc__, _EPILOG)
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a complete run: logs/STUDY/RUN")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at (default: %(default)s)")
    parser.add_argument("--port", type=_port, default=8000, help="0 for a free one (default: %(default)s)")
    batch = "most images that pass through the network at once (default: %(default)s)"
    parser.add_argument("--batch", type=positive, default=8, metavar="N", help=batch)
    wait = "longest that an image waits for others while the network is free (default: 0)"
    parser.add_argument("--wait", type=_at_least_0, default=0.0, metavar="MS", help=wait)
    queue = "most requests at a time; further ones get 429 (default: %(default)s)"
    parser.add_argument("--queue", type=positive, default=64, metavar="N", help=queue)
    replicas = "processes that make masks (default: 1; with --device cuda one for each GPU)"
    parser.add_argument("--replicas", type=positive, metavar="N", help=replicas)
    timeout = "replace a replica that answers nothing for so long; a large image is one pass (default: 600)"
    parser.add_argument("--timeout", type=_above_0, default=600.0, metavar="SECONDS", help=timeout)
    device = "where masks are made (default: a GPU where there is one); replicas on the CPU share the cores"
    parser.add_argument("--device", choices=("cpu", "cuda"), help=device)
    asked = "serve only who sends the word in it, as Authorization: Bearer WORD; /health is open"
    parser.add_argument("--token-file", type=Path, metavar="FILE", help=asked)
    log = "add a line of JSON for each request; /dev/stdout prints them"
    parser.add_argument("--access-log", type=Path, metavar="FILE", help=log)
    any_depth = "take images of another kind or depth than the run was trained on"
    parser.add_argument("--any-depth", action="store_true", help=any_depth)
    resize = "bring every image to the size of training, not to its scale"
    parser.add_argument("--resize", action="store_true", help=resize)
    measuring = parser.add_argument_group("to measure, without serving anybody else")
    measuring.add_argument("--measure", type=Path, metavar="IMAGES", help="folder of images to send")
    measuring.add_argument("--output", type=Path, metavar="FOLDER", help="for serving.csv")
    goal = "search for a setting that answers 99 %% of the requests within this time (default: 100)"
    measuring.add_argument("--goal", type=_above_0, metavar="MS", help=goal)
    rate = "requests a second (default: as many as batches of 1 give to clients that never wait)"
    measuring.add_argument("--rate", type=_above_0, metavar="R", help=rate)
    requests = "requests for each setting and rate, at least 400 (default: 1000)"
    measuring.add_argument("--requests", type=_requests, metavar="N", help=requests)
    return parser


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > _LAST_PORT:
        raise argparse.ArgumentTypeError(f"found {text!r}; allowed: 0 to {_LAST_PORT}")
    return int(text)


def _at_least_0(text: str) -> float:
    """Return a number, 0 or more."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"found {text!r}; allowed: 0 or more")
    return value


def _above_0(text: str) -> float:
    value = _at_least_0(text)
    if not value:
        raise argparse.ArgumentTypeError(f"found {text!r}; allowed: more than 0")
    return value


def _requests(text: str) -> int:
    """Return a number of requests that gives the 99th percentile an interval."""
    if not text.isdecimal() or int(text) < _FEWEST_REQUESTS:
        raise argparse.ArgumentTypeError(f"found {text!r}; allowed: {_FEWEST_REQUESTS} or more")
    return int(text)
