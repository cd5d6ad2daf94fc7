"""Workers end after the last sum, whatever the threads of the library still hold."""

import subprocess
import sys

import pytest

from tests.test_rendezvous import free_port
from unet_scaling.study.config import PROJECT

# Groups made and left in turn, as by the native twin. Without the last reference one in dozens never ends.
PROGRAM = """
import sys
from torch import distributed, nn, ones
from torch.distributed import PrefixStore, TCPStore
from torch.nn.parallel import DistributedDataParallel
from unet_scaling.group.rendezvous import hold_until_exit

rank, port = map(int, sys.argv[1:])
store = TCPStore("127.0.0.1", port, 2, rank == 0)

def run(number):
    distributed.init_process_group("gloo", store=PrefixStore(str(number), store), rank=rank, world_size=2)
    replica = DistributedDataParallel(nn.Linear(4, 4))
    replica(ones(2, 4)).sum().backward()
    distributed.all_reduce(ones(4))
    hold_until_exit(distributed.group.WORLD)
    distributed.destroy_process_group()

for number in range(60):
    run(number)
"""


@pytest.mark.slow
def test_the_reducer_is_never_the_last_to_let_go_of_the_group() -> None:
    port = str(free_port())
    programs = [
        subprocess.Popen([sys.executable, "-c", PROGRAM, str(rank), port], cwd=PROJECT) for rank in (0, 1)
    ]
    try:
        assert [program.wait(timeout=240) for program in programs] == [0, 0]
    finally:
        for program in programs:
            program.kill()
            program.wait()
