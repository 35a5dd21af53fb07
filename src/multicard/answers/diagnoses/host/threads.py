"""Diagnosis of ranks on CPUs that together compute with more threads than there are CPUs."""

from collections.abc import Iterator

from multicard.answers.diagnoses.diagnosis import Diagnosis
from multicard.core.text import counted
from multicard.results.configuration import Configuration


def diagnoses(configuration: Configuration) -> Iterator[Diagnosis]:
    """Yield that the ranks of a node have more threads than the node has CPUs for them, if they do."""
    threads, cpus = configuration.mean("intraop_threads"), configuration.mean("usable_cpus")
    if configuration["device"] != "cpu" or not threads or not cpus:
        return
    ranks = configuration["devices"] // configuration["nodes"]
    if round(threads) * ranks <= round(cpus):
        return
    fitting = max(1, round(cpus) // ranks)
    computing = "1 rank computes" if ranks == 1 else f"{ranks} ranks of a node compute"
    each = "" if ranks == 1 else " each"
    evidence = f"{computing} with {counted(round(threads), 'thread')}{each} on {counted(round(cpus), 'CPU')}"
    remedy = (
        f"{counted(fitting, 'thread')} in a rank (`OMP_NUM_THREADS={fitting}` or `torch.set_num_threads({fitting})`)"
    )
    yield Diagnosis(evidence, remedy, None)
