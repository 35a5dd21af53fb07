"""The messages by which Slurm's programs report that Slurm's controller did not answer."""

import re

# The first phrase of `NO_ANSWER`.
CONTROLLER_AWAY = "unable to contact slurm controller"

# Errors of Slurm (`slurm_errno.c`) and of Linux when the controller is busy, unreachable or restarting. Such an error
# is no refusal: the request may succeed later, and it may even have been carried out.
NO_ANSWER = re.compile(
    rf"{CONTROLLER_AWAY}|socket timed out|temporarily unable to accept|standby mode"
    "|transport endpoint is not connected|zero bytes were transmitted|resource temporarily unavailable"
    "|connection refused|connection timed out|connection reset by peer",
    re.IGNORECASE,
)
