"""Tables of saliency maps: how fast they are made, how faithful they are, and the maps of every image."""

from analysis.report import saliency_columns as shown
from analysis.report.table import POINT_KEYS, PageTable, Table

_PHASES = "masks_share, forward_share, weighting_share, sum_share, files_share, other_share"
_PARTS = "masks_seconds, forward_seconds, weighting_seconds, sum_seconds, files_seconds, other_seconds"
_PHASES_TEXT = (
    "of the workers' time: making masks, masked images and forward passes, adding up masks by their scores, "
    "sums over the workers with the wait for the slowest, writing maps, the rest; together 1"
)
_AREAS = "deletion_area, random_deletion_area, insertion_area, random_insertion_area"

SALIENCY_TABLES = (
    Table(
        "saliency.csv",
        lambda report: report.saliency.points,
        POINT_KEYS
        | {
            "repeats": "launches that count for speed, as in summary.csv; resumed ones do not",
            "split": "what the workers shared out: images or masks",
            "method, masks, images": "how images are perturbed, masks of each image, images to explain",
            "maps": "images that have one; median over runs",
            "maps_per_second ±": "maps over seconds of the slowest worker; median over runs",
            "speedup ±": "over that of the same series on 1 worker",
            "efficiency ±": "speed-up / workers",
            "worker_seconds_per_map ±": "workers / maps_per_second; median over runs",
            _PARTS: "its parts, by their shares",
            _PHASES: _PHASES_TEXT,
            "peak_bytes": "the most main memory that any worker of any run ever had",
            "unknown": "why a number of this row is not known",
        },
        "Where a study makes saliency maps ([saliency.md](saliency.md)): one row per point; else no file.",
        PageTable("saliency", "Saliency maps per second", shown.of_saliency, leads=True),
        needs_rows=True,
    ),
    Table(
        "saliency_runs.csv",
        lambda report: report.saliency.runs,
        {
            "run, options, framework, knobs, workers, repeat": "what was run",
            "split, method, masks, images": "as in saliency.csv",
            "maps, maps_made_here": "images that have one; how many the last attempt made",
            "seconds": "of the slowest worker",
            "maps_per_second": "empty where `untimed` says why",
            _PHASES: _PHASES_TEXT,
            "peak_bytes": "the most main memory that any worker ever had",
            "check_seconds": "for overlays, curves and untrained maps, after the clock",
            "epochs": "trained before",
            "weights_sha256": "of the weights that are explained",
            "untimed": "why the run has no speed: resumed, or no map at all",
        },
        "One row per run with saliency maps.",
        needs_rows=True,
    ),
    Table(
        "saliency_faithfulness.csv",
        lambda report: report.saliency.faithful,
        {
            "run, options, framework, knobs, workers, repeat": "what was run",
            "score": "of a prediction: foreground_probability or iou",
            "images": "with deletion and insertion curves",
            _AREAS: "areas under the curves in the map's order and in random order, means over the images",
            "deletion_better, deletion_share ±": "images whose deletion area is smaller than that of random "
            "order by 0.01 at least; their share, with its exact interval (Clopper and Pearson)",
            "insertion_better, insertion_share ±": "images whose insertion area is larger by 0.01 at least",
            "untrained_images, untrained_maps": "explained with freshly drawn weights, too; how many of them "
            "have a map then",
            "untrained_better, untrained_share ±": "deletion as above, of these maps and weights",
            "untrained_correlation": "size of Spearman's correlation of both maps, median over these images",
            "weights_sha256": "of the weights that are explained",
        },
        "One row per run and score whose manifest has curves.",
        PageTable(
            "saliency",
            "How faithful the maps of each set of weights are",
            shown.of_faithfulness,
            shown.each_training,
        ),
        needs_rows=True,
    ),
    Table(
        "saliency_curves.csv",
        lambda report: report.saliency.curves,
        {
            "options, score, kind": "which curve: deletion or insertion",
            "pixel_share": "of the pixels deleted or inserted",
            "images, trainings": "of which it is the mean; runs of equal weights count once",
            "own ±": "score in the map's order, with a 95 % t interval over the images",
            "random ±": "score in random order",
        },
        "The deletion and insertion curves of the page.",
        needs_rows=True,
    ),
    Table(
        "saliency_images.csv",
        lambda report: report.saliency.images,
        {
            "run, image, position, score": "which map; positions count from 0 in the test set",
            "map_sha256": "of the file with the maps of all scores",
            "no_map": "why there is none",
            _AREAS: "as in saliency_faithfulness.csv, of this image",
        },
        "One row per run, image and score.",
        needs_rows=True,
    ),
)
