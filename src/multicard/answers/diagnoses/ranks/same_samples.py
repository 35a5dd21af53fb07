"""Diagnosis of ranks that train on the same samples, so that more devices do not pass through the data faster."""

from collections.abc import Iterator
from statistics import fmean

from multicard.answers.diagnoses.diagnosis import Diagnosis
from multicard.core.units import number
from multicard.results.configuration import Configuration
from multicard.results.results import Results

# Samples are drawn more than once if so many times as many are processed as are distinct. A last batch that is filled
# up makes a smaller difference.
LEAST_COPIES = 1.5

_SAMPLER = "a `DistributedSampler`, with which each rank draws samples of its own"
_STREAM = (
    "a stream that gives each rank samples of its own, by its rank and the number of ranks (Hugging Face: "
    "`split_dataset_by_node`)"
)


def diagnoses(configuration: Configuration, results: Results) -> Iterator[Diagnosis]:
    """Yield that ranks draw the same samples, if they do.

    The gain is that of one pass over the data, which then takes as many steps fewer.
    """
    copies = [
        processed / distinct
        for run in configuration.completed
        if (processed := run.number("processed_samples_per_s")) and (distinct := run.number("throughput_samples_per_s"))
    ]
    if not copies or fmean(copies) < LEAST_COPIES:
        return
    times = fmean(copies)
    evidence = f"each sample is drawn by {number(round(times, 1))} of the {configuration['devices']} ranks"
    loaders = results.table("loaders")
    of_runs = loaders[loaders["run"].isin([run.run for run in configuration.completed])]
    is_stream = not of_runs.empty and of_runs["sampler"].isna().all()
    yield Diagnosis(evidence, _STREAM if is_stream else _SAMPLER, 1 - 1 / times)
