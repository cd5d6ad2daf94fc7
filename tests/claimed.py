"""Run programs as if this machine had GPUs: tests/claimed.py REPORTS PROGRAM WORD ... [-- PROGRAM ...].

A dispatch mode knows of each storage the GPU that it would be on, and notes operations whose tensors are on
two devices, copies and reads for which the host would wait, and streams that use what another one still
writes. A function mode lets `tensor.device` tell the claim. torch.cuda is a stand-in, and nccl is gloo. What
C++ makes by itself is seen as far as it calls the dispatcher.

A program of Horovod sees one GPU of its own, as under srun --gpus-per-task=1, every other one sees eight. By
the name of its last argument, a run that ends in "stopped" is told to stop, and one that ends in "stalled"
waits for ever: worker 0 in synchronize, worker 1 in a copy. Each process leaves a REPORTS/NAME.RANK.*.json.
"""

# mypy: disable-error-code="no-untyped-call"

import json
import os
import runpy
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from types import CodeType, GetSetDescriptorType, SimpleNamespace
from typing import Any, ClassVar

import torch
import torch._dynamo
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from unet_scaling.group.identity import identify
from unet_scaling.measure.epoch_meter import Meter

CPU = torch.device("cpu")
PROJECT = f"{Path(__file__).parents[1]}/"
COPIES = ("copy_", "_to_copy", "_foreach_copy_", "set_", "lift_fresh")
INDEXED = ("index", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put")
# Whose results have a size, or are a number, that the host must know.
READ_BY_HOST = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique2")
# C++ that these call asks the weights for their device, which to it is the CPU.
MAKES_FOR_WEIGHTS = ("nn/parallel/distributed.py", "autograd/graph.py", "optim/adam.py", "optim/sgd.py")
# Between them and this file.
BETWEEN = (__file__, "torch/_compile.py", "_dynamo/eval_frame.py", "torch/overrides.py")
FOR_EVER_SECONDS = 1e5


@dataclass
class Claim:
    """The place of a storage, and which work of which stream wrote and read it last, by their numbers."""

    alive: StorageWeakRef  # as long as it is kept, no other storage has the number
    device: torch.device
    pinned: bool = False
    written: tuple[int, int] = (0, 0)
    read: Counter[int] = field(default_factory=Counter)


class Claims:
    """The claims of this process by storage, its clock and its streams."""

    def __init__(self) -> None:
        # What was found, by text and number of times; `waits` are those inside the clock of an epoch.
        kinds = ("mixed", "races", "waits", "waits outside", "operations")
        self.report = {kind: Counter[str]() for kind in kinds}
        self.rank = identify(os.environ).rank
        self.device = torch.device("cuda", 0)
        self.resumed = 0
        self.inside = False
        self.host = Counter[int]()
        self._claims: dict[int, Claim] = {}

    def note(self, kind: str, what: str) -> None:
        self.report[kind][f"{what} at {here()}"] += 1

    def of(self, tensor: Tensor) -> Claim | None:
        with torch._C.DisableTorchFunction():
            return self._claims.get(tensor.untyped_storage()._cdata)

    def place(self, tensor: Tensor) -> torch.device:
        claim = self.of(tensor)
        return CPU if claim is None else claim.device

    def put(self, tensor: Tensor, device: torch.device, pinned: bool = False) -> Tensor:
        """Let the storage of a tensor, which is new, be there."""
        with torch._C.DisableTorchFunction():
            storage = tensor.untyped_storage()
        if device == CPU and not pinned:
            self._claims.pop(storage._cdata, None)
            return tensor
        stamp = current_stream().stamp() if device != CPU else (0, 0)
        self._claims[storage._cdata] = Claim(StorageWeakRef(storage), device, pinned, stamp)
        return tensor

    def waits(self, what: str) -> None:
        """Note that the host waits here for what is queued on the current stream."""
        self.host |= current_stream().seen
        self.note("waits" if self.inside else "waits outside", what)

    def stalls(self, rank: int) -> None:
        if self.rank == rank and self.resumed == 2 and sys.argv[-1].endswith("stalled"):
            os.environ.pop("PMI_FD", None)  # else its end would be that of the launch
            time.sleep(FOR_EVER_SECONDS)

    def crosses(self, source: Tensor, target: torch.device, pinned: bool, non_blocking: bool) -> None:
        """Note a copy between host and device: only one from or to pinned memory can let the host go on."""
        came = self.of(source)
        if self.place(source) == target:
            return
        self.stalls(rank=1)
        pinned = pinned if target == CPU else came is not None and came.pinned
        if not (pinned and non_blocking):
            self.waits(f"copy to {target.type} of {'pinned' if pinned else 'pageable'} memory")


class Stream:
    """A queue of the claimed GPU; `seen` says up to which work of each stream its next work comes after."""

    made: ClassVar[list["Stream"]] = []

    def __init__(self, *_: object, **__: object) -> None:
        self.number = len(self.made)
        self.made.append(self)
        self.seen = Counter[int]()

    def stamp(self) -> tuple[int, int]:
        self.seen |= claims.host
        self.seen[self.number] += 1
        return self.number, self.seen[self.number]

    def wait_stream(self, other: "Stream") -> None:
        self.seen |= other.seen


class Event:
    """A moment of a queue; by the clock of the host, whose calls return when their work is done."""

    def __init__(self, **_: object) -> None:
        self.moment = 0.0

    def record(self, stream: Stream) -> None:
        self.moment = time.perf_counter()

    def elapsed_time(self, other: "Event") -> float:
        return 1000 * (other.moment - self.moment)


claims = Claims()
default_stream = Stream()
streams = threading.local()


def current_stream(device: object = None) -> Stream:
    stream: Stream = getattr(streams, "current", default_stream)
    return stream


@contextmanager
def on_stream(stream: Stream | None) -> Iterator[None]:
    before = current_stream()
    streams.current = stream or before
    yield
    streams.current = before


def here() -> str:
    """Return the line of the project that is at work; autograd where it is none."""
    frame = sys._getframe(1)
    while frame.f_back and not is_of_project(frame.f_code):
        frame = frame.f_back
    return f"{frame.f_code.co_filename.removeprefix(PROJECT)}:{frame.f_lineno}" if frame.f_back else "torch"


def is_of_project(code: CodeType) -> bool:
    name = code.co_filename
    return name.startswith(PROJECT) and "/.venv/" not in name and name != __file__


class Placed(TorchDispatchMode):
    """Lets every operation run on the CPU, and what it makes be on the device where it would be."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = func._schema.name.partition("::")[2]
        given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        asked = kwargs.get("device")
        pinned = bool(kwargs.pop("pin_memory", False))
        if asked is not None:
            kwargs["device"] = CPU
        target = self._target(name, args, given, asked)
        if target != CPU:
            claims.report["operations"][str(target)] += 1
        if target != CPU and not func.is_view:
            self._order(func, name, given, args)
        out = func(*args, **kwargs)
        if target != CPU or pinned:
            for each in tree_leaves(out):
                if isinstance(each, Tensor) and claims.of(each) is None:
                    claims.put(each, target, pinned)
        return out

    def _target(self, name: str, args: Any, given: list[Tensor], asked: Any) -> torch.device:
        """Return where the result is; note a mixture, and what the host waits for."""
        if asked is not None:
            device = on_index(torch.device(asked))
            device = claims.device if asked_of_weights(device) else device
            if name == "_to_copy":
                claims.crosses(given[0], device, False, False)
            return device
        if not given:
            return CPU
        first = claims.place(given[0])
        if name in COPIES:
            if name == "copy_" and len(given) == 2:
                to = claims.of(given[0])
                non_blocking = bool(args[2]) if len(args) > 2 else False
                claims.crosses(given[1], first, to is not None and to.pinned, non_blocking)
            return first
        if name in READ_BY_HOST and first != CPU:
            claims.waits(name)
        used = [each for each in given if each.dim() > 0 or claims.place(each) != CPU]
        if name in INDEXED:
            indices = [each for each in args[1] if each is not None]
            of_host = {id(each) for each in indices if claims.place(each) == CPU}
            used = [each for each in used if id(each) not in of_host]
            if any(claims.place(each) != first or each.dtype == torch.bool for each in indices):
                claims.waits(f"{name} by an index of the host, or by a mask")
        places = {claims.place(each) for each in used}
        if len(places) > 1:
            claims.note("mixed", f"{name} of {sorted(map(str, places))}")
        return max(places, key=str, default=CPU)

    def _order(self, func: Any, name: str, given: list[Tensor], args: Any) -> None:
        """Note where a stream uses what another one writes, or writes what another one reads, unordered."""
        stream = current_stream()
        number, work = stream.stamp()
        arguments = zip(func._schema.arguments, args, strict=False)
        written = [each for kind, each in arguments if kind.alias_info and kind.alias_info.is_write]
        writes = {id(each) for each in tree_leaves(written)}
        for each in given:
            claim = claims.of(each)
            if claim is None or claim.device == CPU:
                continue
            before = [claim.written, *(claim.read.items() if id(each) in writes else ())]
            if any(stream.seen[other] < moment for other, moment in before):
                claims.note("races", name)
            if id(each) in writes:
                claim.written = (number, work)
            else:
                claim.read[number] = work


def asked_of_weights(device: torch.device) -> bool:
    """Tell whether this is the CPU because C++ of DDP, the backward pass or an optimizer asked for it."""
    if device != CPU:
        return False
    frame = sys._getframe(1)
    while frame.f_back and frame.f_code.co_filename.endswith(BETWEEN):
        frame = frame.f_back
    return frame.f_code.co_filename.endswith(MAKES_FOR_WEIGHTS)


def on_index(device: torch.device) -> torch.device:
    return claims.device if device.type == "cuda" and device.index is None else device


class Told(TorchFunctionMode):
    """Lets tensors tell their claims, and copies go where they claim to."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        asked = getattr(func, "__self__", None)
        if isinstance(asked, GetSetDescriptorType) and asked in ATTRIBUTES:
            return ATTRIBUTES[asked](args[0])
        if func in METHODS:
            return METHODS[func](*args, **kwargs)
        if func in (torch.Tensor.numpy, torch.Tensor.__array__) and claims.place(args[0]) != CPU:
            claims.note("mixed", "numpy of a device tensor")
        if func is torch.Tensor.tolist and claims.place(args[0]) != CPU:
            claims.waits("tolist")
        return func(*args, **kwargs)


def moved(tensor: Tensor, *args: Any, copy: bool = False, **kwargs: Any) -> Tensor:
    """Return what Tensor.to returns, on the device that it claims."""
    if args and isinstance(args[0], Tensor):
        args = (claims.place(args[0]), args[0].dtype, *args[1:])
    device, dtype, non_blocking, layout = torch._C._nn._parse_to(*args, **kwargs)
    dtype = dtype or tensor.dtype
    target = claims.place(tensor) if device is None or asked_of_weights(device) else on_index(device)
    if target == claims.place(tensor):
        return tensor.to(dtype, copy=copy, memory_format=layout)
    claims.crosses(tensor, target, False, non_blocking)
    return claims.put(tensor.to(dtype, copy=True, memory_format=layout), target)


def copied(tensor: Tensor, memo: dict[int, Any]) -> Tensor:
    """Return what deepcopy makes of a tensor, where that is."""
    return claims.put(tensor.__deepcopy__(memo), claims.place(tensor))


ATTRIBUTES: dict[Any, Callable[[Tensor], object]] = {
    torch.Tensor.device: claims.place,
    torch.Tensor.is_cuda: lambda tensor: claims.place(tensor).type == "cuda",
    torch.Tensor.is_cpu: lambda tensor: claims.place(tensor) == CPU,
}
METHODS: dict[Any, Callable[..., Any]] = {
    torch.Tensor.to: moved,
    torch.Tensor.cpu: lambda tensor, **_: moved(tensor, CPU),
    torch.Tensor.cuda: lambda tensor, device="cuda", **options: moved(tensor, device, **options),
    torch.Tensor.pin_memory: lambda tensor, *_: claims.put(tensor.clone(), CPU, pinned=True),
    torch.Tensor.__deepcopy__: copied,
}


def synchronize(device: object = None) -> None:
    claims.stalls(rank=0)
    for stream in Stream.made:
        claims.host |= stream.seen
    claims.waits("torch.cuda.synchronize")


def set_device(device: Any) -> None:
    index = device if isinstance(device, int) else torch.device(device).index
    claims.device = torch.device("cuda", index)


def is_available() -> bool:
    """Tell the project and Accelerate that there is a GPU; torch itself must not believe it."""
    asking = sys._getframe(1).f_code
    return is_of_project(asking) or "/accelerate/" in asking.co_filename


def stand_in(gpus: int) -> None:
    """Put the stand-ins in the place of torch.cuda and of NCCL, and let every thread work in the modes."""

    def properties(device: Any = None) -> SimpleNamespace:
        asked = device if isinstance(device, int) else torch.device(device or claims.device).index
        index = claims.rank if gpus == 1 else asked
        return SimpleNamespace(name="Claimed GPU", uuid=f"claimed-{index}", total_memory=80 * 2**30)

    generator = [torch.zeros(16, dtype=torch.uint8)]
    stand_ins: dict[str, Any] = {
        "device_count": lambda: gpus, "default_generators": [None] * gpus,
        "get_device_properties": properties,
        "is_available": is_available, "is_initialized": lambda: True, "init": lambda: None,
        "_lazy_init": lambda: None, "set_device": set_device, "synchronize": synchronize,
        "Event": Event, "Stream": Stream, "stream": on_stream, "current_stream": current_stream,
        "get_device_name": lambda device=None: "Claimed GPU",
        "mem_get_info": lambda device=None: (79 * 2**30, 80 * 2**30),
        "get_rng_state": lambda device="cuda": generator[0].clone(),
        "set_rng_state": lambda state, device="cuda": generator.__setitem__(0, state.clone()),
    }  # fmt: skip
    for name, value in stand_ins.items():
        setattr(torch.cuda, name, value)
    # Keeps memory from being given to others too early, which is not seen here.
    torch.Tensor.record_stream = lambda tensor, stream: None  # type: ignore[method-assign, assignment]
    torch.cuda.nccl.version = lambda: (2, 28, 9)
    begin = torch.distributed.init_process_group

    def init_process_group(backend: Any = None, *args: Any, **kwargs: Any) -> None:
        kwargs.pop("device_id", None)
        begin("gloo" if "nccl" in str(backend) else backend, *args, **kwargs)

    torch.distributed.init_process_group = init_process_group
    run = threading.Thread.run

    def run_in_modes(self: threading.Thread) -> None:
        with Placed(), Told():
            run(self)

    threading.Thread.run = run_in_modes  # type: ignore[method-assign]


def watch_clock() -> None:
    """Note when the clock of an epoch runs: between Meter.resume and Meter.pause."""
    resume, pause = Meter.resume, Meter.pause

    def resumed(self: Meter) -> None:
        claims.resumed += 1
        folder = Path(sys.argv[-1])
        if claims.resumed == 2 and folder.name.endswith("stopped") and not any(folder.glob("checkpoint-*")):
            os.kill(os.getpid(), signal.SIGUSR2)
        resume(self)
        claims.inside = claims.resumed > 1  # the first step of a run warms up

    def paused(self: Meter) -> float:
        claims.inside = False
        return pause(self)

    Meter.resume = resumed  # type: ignore[method-assign]
    Meter.pause = paused  # type: ignore[method-assign]


def run_program(*command: str) -> None:
    """Run a script in the modes; leave the report, however it ends."""
    is_horovod = f"{PROJECT}horovod/train.py" in command
    stand_in(gpus=1 if is_horovod else 8)
    watch_clock()
    if is_horovod:
        import horovod.torch

        horovod.torch.nccl_built = horovod.torch.cuda_built = lambda: 1
    leave = os._exit

    def report() -> None:
        if not claims.report["operations"]:  # this process started others
            return
        name = f"{Path(sys.argv[-1]).name}.{claims.rank}.{os.getpid()}.json"
        Path(REPORTS, name).write_text(json.dumps(claims.report))

    def leave_with_report(code: int) -> None:
        report()
        leave(code)

    os._exit = leave_with_report  # type: ignore[assignment]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    sys.argv = list(command)
    try:
        with Placed(), Told():
            runpy.run_path(command[0], run_name="__main__")
    finally:
        report()


def main() -> None:
    *others, last = (list(words) for is_end, words in groupby(sys.argv[2:], "--".__eq__) if not is_end)
    for command in others:
        if os.fork() == 0:
            run_program(*command)
            os._exit(0)
        assert os.wait()[1] == 0, f"{command} failed"
        # As tests/train_several.py does: a worker may begin the next program before another one.
        os.environ["MASTER_PORT"] = str(int(os.environ.get("MASTER_PORT", "0")) + 1000)
    run_program(*last)


if __name__ == "__main__":
    REPORTS = Path(sys.argv[1])
    main()
