"""Programs of Python in forks of one process that has imported what they need, which spares each of them the imports.

Each is a process of its own that runs a module as `python -m` does. It is for tests of what a program does; tests of
how it starts and is ended start it as users do.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

# Runs the modules that are asked for, one after the other, until nobody can ask any more. As in frozen_imports.py, what
# it has imported is no garbage.
SERVER = """
import gc, importlib, json, os, runpy, signal, sys
codes = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
for name in sys.argv[1:]:
    importlib.import_module(name)
gc.collect(), gc.freeze()
for line in sys.stdin:
    asked = json.loads(line)
    child = os.fork()
    if child == 0:
        signal.alarm(asked["limit_s"])
        os.chdir(asked["folder"])
        os.environ.clear()
        os.environ.update(asked["environment"])
        for number, path in enumerate([os.devnull, *asked["outputs"]]):
            os.dup2(os.open(path, os.O_RDWR), number)
        sys.argv = asked["program"]
        sys.path[0:0] = filter(None, asked["environment"].get("PYTHONPATH", "").split(os.pathsep))
        runpy.run_module(asked["program"][0], run_name="__main__", alter_sys=True)
        sys.exit()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file=codes, flush=True)
"""
IMPORTED_BY_SNAKEMAKE = (
    "snakemake.cli", "snakemake.executors.local", "snakemake.scheduling.job_scheduler", "multicard.config.plan",
    "multicard.config.resources",
    "multicard.workflow.slurm_queue",
)  # fmt: skip


class ForkedPython:
    """A process that has imported these modules, once it is first asked to run a program."""

    def __init__(self, *imported: str) -> None:
        self.command = [sys.executable, "-P", "-c", SERVER, *imported]
        self.server: subprocess.Popen[str] | None = None

    def run(
        self, program: Sequence[object], folder: Path, environment: Mapping[str, str], limit_s: int
    ) -> subprocess.CompletedProcess[str]:
        """Run a module, named first, with the arguments that follow; kill it after `limit_s` seconds."""
        if self.server is None:
            self.server = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        with tempfile.TemporaryDirectory() as made:
            outputs = [Path(made, name) for name in ("out", "err")]
            for output in outputs:
                output.touch()
            asked = {
                "program": [str(part) for part in program], "folder": str(folder), "environment": dict(environment),
                "outputs": [str(output) for output in outputs], "limit_s": limit_s,
            }  # fmt: skip
            self.server.stdin.write(json.dumps(asked) + "\n")
            self.server.stdin.flush()
            code = int(self.server.stdout.readline())
            return subprocess.CompletedProcess(asked["program"], code, *(output.read_text() for output in outputs))


SNAKEMAKE = ForkedPython(*IMPORTED_BY_SNAKEMAKE)


def snakemake(
    folder: Path, *arguments: object, environment: Mapping[str, str] = os.environ, limit_s: int = 1800
) -> subprocess.CompletedProcess[str]:
    """Snakemake as its command starts it, in a folder."""
    return SNAKEMAKE.run(["snakemake", *arguments], folder, environment, limit_s)
