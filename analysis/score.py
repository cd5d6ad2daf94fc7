"""The score by which a study judges what was learned: its name in tables, and the words for it."""

import re
from dataclasses import dataclass

from unet_scaling.study.options import CRITERIA_OF_OWN_TASK
from unet_scaling.study.texts import score_title

# The score of the built-in task, by which columns, files and criteria are named in the code.
BUILT_IN_SCORE = "iou"
# Keys of [criteria] -> what they are called where the score is another one.
_CRITERIA = {built_in: own for own, built_in in CRITERIA_OF_OWN_TASK.items()}
# Columns of the built-in task alone.
BUILT_IN_COLUMNS = frozenset(
    ("dice", "image_iou", "true_positive", "false_positive", "false_negative", "true_negative")
)
# What columns, files, figures and keys of a report are called besides those named for the score.
TAKEN_NAMES = frozenset(
    """
    answer answers application at_stake best budget busy_share bytes_per_second check checks compare
    comparison comparisons compute confidence contended cores_per_worker cost cost_ms costs counted
    coverage criteria data_wait deviation devices diagnosis difference dilation disturbed diverged
    doubts efficiency efficiency_common emulated_by epoch epochs epochs_per_second epochs_to_target
    epochs_used equal_within_margin error evaluation_scores evaluations evidence fact fairness
    fastest_worker_seconds file finding first_epoch fits fitted_on floor_seconds framework frameworks
    gpu gradient_bytes held_out held_out_error held_out_points horovod_knobs host hosts
    hosts_floor_seconds images images_per_epoch images_per_second imbalance inside interval_score
    joules_per_image kind knobs largest_term largest_term_share last_efficiency_error last_epoch latency
    latency_seconds launches launches_needed learning_rate left_out linear linear_error
    linear_interval_score link_rate loss mark measured measured_for medium memory_bytes model models
    native_knobs network node_efficiency node_hours node_hours_per_epoch node_hours_to_target
    node_speedup nodes noise noise_scale noise_scale_images noise_scale_workers non_inferior notes
    only_in optimizer options other_host outcome p_adjusted pairs pareto pareto_of peak_memory_bytes
    ping_pong plan played played_runs played_workers points power_watts predicted prediction
    prediction_scores predictions provenance quality ratio ratio_of_medians reason recommendations
    repeat repeats repeats_needed report request rest rest_of_step rule run runs runs_to_target
    same_weights sampled_steps scaling schema_version scores seconds seconds_per_epoch seconds_to_target
    seed seeds seeds_paired signal source speed speedup speedup_common stage stalled stalls started_utc
    startup state step_ms step_seconds steps steps_per_epoch study summary task_scores test_images
    throughput throughput_unit training_seconds transfer transfer_between_nodes try_next unequal_work
    unknown unscored utilization verdict verdicts warmup waterfall weight weights_sha256 why wire
    wire_seconds withholds worker_hours worker_hours_per_epoch worker_hours_to_target workers
    written_utc
    """.split()  # noqa: SIM905
)
# What such a name may end in.
_ENDS = re.compile(r"_(low|high|a|b)$")
_NAMED_FOR_IOU = re.compile(rf"(?<![a-z]){BUILT_IN_SCORE}(?![a-z])")


@dataclass(frozen=True)
class Score:
    """The score that is judged.

    `name` is that of the records, and `sample` what the training and test sets consist of. In all tables of
    the analysis it is the column `iou`; `key` gives the names of columns and files as they are written.
    """

    name: str = BUILT_IN_SCORE
    sample: str = "image"

    @property
    def title(self) -> str:
        """What it is called within a sentence, "IoU" or "top accuracy"."""
        return score_title(self.name)

    @property
    def heading(self) -> str:
        """What it is called at the beginning of a sentence, "IoU" or "Top accuracy"."""
        return self.title[:1].upper() + self.title[1:]

    @property
    def with_article(self) -> str:
        """One value of it within a sentence, "an IoU" or "a top accuracy"."""
        return f"{'an' if self.title[0].lower() in 'aeiou' else 'a'} {self.title}"

    @property
    def column(self) -> str:
        """Its column in outputs: its name, or "loss_score" where "loss" is the name of something else."""
        taken = {self.name, _ENDS.sub("", self.name)} & TAKEN_NAMES
        return f"{self.name}_score" if taken else self.name

    def has(self, column: str) -> bool:
        """Return whether tables have this column where this score is judged."""
        return self.name == BUILT_IN_SCORE or column not in BUILT_IN_COLUMNS

    @property
    def samples(self) -> str:
        """The samples of a data set, "images" or "samples"."""
        return f"{self.sample}s"

    def key(self, name: str) -> str:
        """Return what a column, file, section or criterion that is named for IoU is called in outputs."""
        if self.name == BUILT_IN_SCORE:
            return name
        return _CRITERIA.get(name) or _NAMED_FOR_IOU.sub(self.column, name)
