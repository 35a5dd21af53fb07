"""How the programs of Slurm print that its controller did not answer them."""

import re

# The first phrase of `NO_ANSWER`.
CONTROLLER_AWAY = "unable to contact slurm controller"

# Errors of Slurm (`slurm_errno.c`) and of Linux when the controller is busy, away or restarting. They refuse nothing:
# what was asked for may succeed later, and may even have been done.
NO_ANSWER = re.compile(
    rf"{CONTROLLER_AWAY}|socket timed out|temporarily unable to accept|standby mode"
    "|transport endpoint is not connected|zero bytes were transmitted|resource temporarily unavailable"
    "|connection refused|connection timed out|connection reset by peer",
    re.IGNORECASE,
)
