"""Say whether a run is complete: a job script asks it for each run of an allocation.

python -m slurm.study_folder RUN_FOLDER   prints the run's state; succeeds where it is complete
"""

import sys
from pathlib import Path

from unet_scaling.format.run_state import run_state


def main() -> int:
    state = run_state(Path(sys.argv[1]))
    print(state.state, state.reason)
    return 0 if state.is_complete else 1


if __name__ == "__main__":
    sys.exit(main())
