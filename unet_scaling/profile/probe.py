"""Time some training steps of a study's first configuration on this machine, for an estimate.

python -m unet_scaling.profile.probe SECONDS CORES < study.json   prints a Probed as JSON
"""

import sys

from unet_scaling.profile.measure import (
    cores_of_one_worker,
    default_device,
    device_name,
    open_subject,
    plain_step,
    step_phases,
)
from unet_scaling.study.config import StudyConfig
from unet_scaling.study.errors import run_program
from unet_scaling.study.probed import Probed

# A batch to warm up and one to repeat: steps take as long whatever the images are.
BATCHES_SAMPLED = 2


def main() -> None:
    """Raises UserError (65) for a folder that does not match its manifest."""
    study = StudyConfig.model_validate_json(sys.stdin.read())
    seconds, cores = float(sys.argv[1]), int(sys.argv[2])
    device = default_device()
    batch = study.configs()[0].training.batch_per_worker
    with cores_of_one_worker(cores), open_subject(study, BATCHES_SAMPLED * batch) as subject:
        step = plain_step(subject.config, device)
        taken = step_phases(subject, step, device, 0, seconds).sum(axis=1).tolist()
    probed = Probed(device=device_name(device), cores=cores, images_per_step=batch, step_seconds=taken)
    print(probed.model_dump_json())


if __name__ == "__main__":
    run_program(main)
