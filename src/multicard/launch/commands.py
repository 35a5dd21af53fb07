"""Command lines of a training job."""

import sys

from multicard.core.rendezvous import Rendezvous, torchrun_options


def training_command(
    module: str, arguments: list[str], ranks: int, distributed: bool, rendezvous: Rendezvous | None = None
) -> list[str]:
    """Command that runs a module in one process, or under torchrun in `ranks` processes of this machine.

    `rendezvous`: of a job on several nodes, which of them this machine is.
    """
    torchrun = ["-m", "torch.distributed.run", *torchrun_options(ranks, rendezvous)] if distributed else []
    return [sys.executable, *torchrun, "-m", module, *arguments]
