"""Print a conda environment with the packages of the lock: python envs/conda_from_lock.py > envs/conda.yaml."""

import json
import re
from pathlib import Path


def conda_environment(lock: str) -> str:
    """Give the environment file for the text of a lock file. multicard itself is not in it: the rules bring it."""
    pins = re.findall(r"^([a-z0-9][^\\\n]*==[^\\\n]*?) *\\?$", lock, re.M)
    head = [
        "# Made from requirements.lock by conda_from_lock.py, for `snakemake --sdm conda`. Nsight Systems and the GPU",
        "# driver come from the machine.",
        "channels:",
        "  - conda-forge",
        "  - nodefaults",
        "dependencies:",
        "  - python =3.12",
        "  - pip",
        "  - pip:",
    ]
    return "\n".join([*head, *(f"      - {json.dumps(pin)}" for pin in pins)]) + "\n"


if __name__ == "__main__":
    print(conda_environment(Path(__file__).with_name("requirements.lock").read_text(encoding="utf-8")), end="")
