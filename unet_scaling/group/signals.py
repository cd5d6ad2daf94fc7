"""The signals that ask a worker to stop in order."""

import signal

# Slurm sends SIGUSR2 where the job script asks for a warning before the time limit, and SIGTERM on
# preemption, on scancel and where another task of the step has failed.
STOP_SIGNALS = (signal.SIGUSR2, signal.SIGTERM)
