"""Versions of software that differ between the workers of one launch."""

from unet_scaling.study.record_lines import WorkerFacts


def different_versions(workers: list[WorkerFacts], versions_by_rank: list[dict[str, str]]) -> list[str]:
    """Return a sentence for each version that differs from worker 0's, naming the first worker that does."""
    sentences = []
    for name in sorted(set().union(*versions_by_rank)):
        by_rank = [versions_of_worker.get(name, "none") for versions_of_worker in versions_by_rank]
        differing = [rank for rank, version in enumerate(by_rank) if version != by_rank[0]]
        if differing:
            compared = (0, differing[0])
            named = [f"{by_rank[rank]} on worker {rank} ({workers[rank].host})" for rank in compared]
            sentences.append(f"{name} is {' and '.join(named)}")
    return sentences
