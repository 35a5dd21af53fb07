"""What is gained at most by going without something that takes a known share of the time."""

# A change is worth making only if it makes training at least this many times as fast.
WORTHWHILE = 1.02


def gain_without(share: float) -> float:
    """Return how many times as fast a job is without what takes a share of its time, if nothing else changes.

    It is 1 / (1 - share), for a share below 1 (Gene Amdahl, AFIPS 1967).

    >>> gain_without(0.0), gain_without(0.5), gain_without(0.75)
    (1.0, 2.0, 4.0)
    """
    return 1 / (1 - share)
