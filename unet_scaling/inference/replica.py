"""One replica of `unet-scaling serve`: python -m unet_scaling.inference.replica RUN NUMBER REPLICAS ...

Reads batches of requests from standard input, and writes the answers to standard output as they are made,
those of images that pass through the network together in one message. The first message tells the network,
or the UserError why there is none. It ends with its input, and ignores SIGTERM, which may go to all processes
of a server: this one is needed until the server has answered.
"""

import argparse
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from email import message_from_bytes
from email.message import Message
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple

import torch

from unet_scaling.base.errors import UserError
from unet_scaling.data.pixels import decode
from unet_scaling.group.gpus import gpu_count, use_gpu
from unet_scaling.inference.masks import packed_mask
from unet_scaling.inference.replicas import LENGTH_BYTES, Answered, packed
from unet_scaling.inference.segment import FittedImage, Segmenter, open_segmenter

# Messages call an image so that has no file.
_NAME = Path("image")


class _Item(NamedTuple):
    place: int
    content: bytes
    image: FittedImage


def answers(segmenter: Segmenter, batch: Sequence[tuple[str, bytes]]) -> Iterator[list[Answered]]:
    """Yield the answers to a batch of content types and bodies, a list for each pass through the network.

    Images of the size of the study pass together; one at a time is larger.
    """
    together: list[_Item] = []
    large: list[int] = []
    for place, request in enumerate(batch):
        try:
            item = _read(segmenter, place, *request)
        except UserError as error:
            yield [Answered(place, HTTPStatus.BAD_REQUEST, str(error))]
            continue
        if item.image.is_alone:
            # It is decoded again when it is its turn: all of a batch would fill the memory.
            large.append(place)
        else:
            together.append(item)
    if together:
        yield from _passed(segmenter, together)
    for place in large:
        yield from _passed(segmenter, [_read(segmenter, place, *batch[place])])


def _read(segmenter: Segmenter, place: int, content_type: str, body: bytes) -> _Item:
    content = image_of(content_type, body)
    return _Item(place, content, segmenter.fit(_NAME, decode(_NAME, content)))


def _passed(segmenter: Segmenter, items: Sequence[_Item]) -> Iterator[list[Answered]]:
    """Yield the masks of images that pass together; where that fails, each is tried alone.

    What else than a UserError an image alone raises ends a replica on a GPU: CUDA may be unusable after it.
    """
    try:
        regions = segmenter.regions([item.image for item in items])
    except Exception as error:
        if len(items) > 1:
            for item in items:
                yield from _passed(segmenter, [item])
        elif isinstance(error, UserError):
            yield [Answered(items[0].place, HTTPStatus.BAD_REQUEST, str(error))]
        elif segmenter.device.type == "cuda":
            raise
        else:
            traceback.print_exc()
            yield [
                Answered(
                    items[0].place,
                    HTTPStatus.INTERNAL_SERVER_ERROR,
                    "image: no mask could be made; the server's output says why",
                )
            ]
        return
    yield [
        Answered(
            place, HTTPStatus.OK, packed_mask(image.at_own_size(region), segmenter.origin(content, b""), [])
        )
        for (place, content, image), (region, _) in zip(items, regions, strict=True)
    ]


def image_of(content_type: str, body: bytes) -> bytes:
    """Return the image in a body: the field `image` of multipart/form-data, else the body itself."""
    header = Message()
    header["Content-Type"] = content_type
    if header.get_content_type() != "multipart/form-data":
        return body
    boundary = header.get_boundary()
    if boundary:
        # The parser of mail would take minutes for the content of large images.
        for part in (b"\r\n" + body).split(b"\r\n--" + boundary.encode("latin-1"))[1:-1]:
            head, _, content = part.partition(b"\r\n\r\n")
            fields = message_from_bytes(head.lstrip())
            if fields.get_param("name", header="content-disposition") == "image":
                return content
    raise UserError("image: the form has no field of this name; send it as curl -F image=@FILE does")


def _device_of(wanted: str | None, number: int, replicas: int) -> torch.device:
    """Return the device of one of these replicas: GPUs in turn, or its share of the cores, which it keeps.

    Raises UserError where a GPU is wanted and there is none.
    """
    gpus = 0 if wanted == "cpu" else gpu_count()
    if gpus:
        use_gpu(number % gpus)
        return torch.device("cuda", number % gpus)
    if wanted == "cuda":
        raise UserError("--device cuda: torch sees no GPU here; say --device cpu")
    if replicas > 1:
        cores = sorted(os.sched_getaffinity(0))
        first, end = (each * len(cores) // replicas for each in (number, number + 1))
        own = cores[first:end] or [cores[number % len(cores)]]
        os.sched_setaffinity(0, own)
        torch.set_num_threads(len(own))
    return torch.device("cpu")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    for name in ("number", "replicas"):
        parser.add_argument(name, type=int)
    parser.add_argument("--device")
    parser.add_argument("--any-depth", action="store_true")
    parser.add_argument("--resize", action="store_true")
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # What libraries print is no answer.
    output = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def send(message: object) -> None:
        output.write(packed(message))
        output.flush()

    # Whoever reads may have ended.
    with suppress(EOFError, BrokenPipeError, pickle.UnpicklingError):
        try:
            device = _device_of(chosen.device, chosen.number, chosen.replicas)
            segmenter = open_segmenter(chosen.run, device, any_depth=chosen.any_depth, resize=chosen.resize)
        except UserError as error:
            send(error)
            return
        send(
            {
                "weights_sha256": segmenter.weights_sha256,
                "trained_on": sorted(segmenter.modes),
                "resize": segmenter.scales is None,
                "device": device.type,
            }
        )
        while length := sys.stdin.buffer.read(LENGTH_BYTES):
            batch = pickle.loads(sys.stdin.buffer.read(int.from_bytes(length)))  # noqa: S301, of the server
            for found in answers(segmenter, batch):
                send(found)


if __name__ == "__main__":
    main()
