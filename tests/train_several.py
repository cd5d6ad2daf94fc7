"""Train several run folders in one launch: python tests/train_several.py TRAIN_PY RUN_FOLDER ...

A worker imports the twin once, which takes longer than a small run, and is then forked for every run, before
anything of it has begun: each has processes, a port, a group and memory of its own; but MPI connects the
workers of a launch once. Prints exit codes by folder.
"""

import importlib.util
import json
import os
import sys
from pathlib import Path

from unet_scaling.base.errors import run_worker


def main() -> None:
    program, *folders = sys.argv[1:]
    spec = importlib.util.spec_from_file_location("twin", program)
    assert spec is not None
    assert spec.loader is not None
    twin = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(twin)
    # Else every run would import it: an optimizer does so when it is made.
    importlib.import_module("torch._dynamo")
    codes: dict[str, int] = {}
    for number, folder in enumerate(folders):
        worker = os.fork()
        if worker == 0:
            sys.argv = [program, folder]
            # A worker that is through may begin the next while another serves the last. The launch's own port
            # follows from a process id, and the next test process has one of the next ids.
            port = int(os.environ.get("MASTER_PORT", "0")) + 100 * number
            os.environ["MASTER_PORT"] = str(port)
            with Path(folder, "output.log").open("ab") as output:
                os.dup2(output.fileno(), sys.stdout.fileno())
                os.dup2(output.fileno(), sys.stderr.fileno())
            run_worker(twin.main)
        _, status = os.waitpid(worker, 0)
        codes[Path(folder).name] = os.waitstatus_to_exitcode(status)
    print(json.dumps(codes))


if __name__ == "__main__":
    main()
