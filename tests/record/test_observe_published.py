"""Training scripts that others published, unchanged, with and without the observer.

`MULTICARD_SCRIPTS` names a folder with clones of karpathy/nanoGPT and of pytorch/examples (as pytorch-examples).
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from observed_scripts import Observed, Server, has_memory_and_phases

SCRIPTS = Path(os.environ.get("MULTICARD_SCRIPTS", ""))
pytestmark = pytest.mark.skipif("MULTICARD_SCRIPTS" not in os.environ, reason="needs MULTICARD_SCRIPTS, a folder")


def with_and_without(
    server: Server, tmp_path: Path, file: Path, arguments: Sequence[str], line: str
) -> tuple[Observed, list[str], list[str]]:
    """Run a script both ways; give what was observed, and what both printed that fits `line`."""
    observed, plain = tmp_path / "observed", tmp_path / "plain"
    places = []
    for folder in (observed, plain):
        shutil.copytree(file.parent, folder / "own")
        places.append(folder / "own" / file.name)
    words = [str(places[0]), *arguments]
    found = server.run(
        observed,
        f"import os, runpy, sys\nos.chdir({str(places[0].parent)!r})\nsys.path.insert(0, os.getcwd())\n"
        f"sys.argv = {words!r}\nrunpy.run_path(sys.argv[0], run_name='__main__')\n",
    )
    losses, expected = re.findall(line, found.output), []
    with subprocess.Popen(
        [sys.executable, "-u", places[1], *arguments],
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"},
        cwd=places[1].parent, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        for printed in process.stdout:
            expected += re.findall(line, printed)
            if len(expected) >= len(losses):
                break
        process.terminate()
    return found, losses, expected


def test_nanogpt(server: Server, tmp_path: Path) -> None:
    """No loader, two batches accumulated, evaluation before the first update."""
    source = shutil.copytree(SCRIPTS / "nanoGPT", tmp_path / "source")
    (source / "data" / "shakespeare_char" / "input.txt").write_text("To be, or not to be: that is the question.\n" * 99)
    subprocess.run([sys.executable, source / "data" / "shakespeare_char" / "prepare.py"], check=True)
    options = {
        "device": "cpu", "compile": False, "eval_iters": 1, "log_interval": 1, "block_size": 16, "batch_size": 4,
        "n_layer": 2, "n_head": 2, "n_embd": 32, "max_iters": 10, "gradient_accumulation_steps": 2,
    }  # fmt: skip
    arguments = ["config/train_shakespeare_char.py", *(f"--{name}={value}" for name, value in options.items())]
    found, losses, expected = with_and_without(server, tmp_path, source / "train.py", arguments, r"iter \d+: loss \S+,")
    assert (found.rank["outcome"], found.rank["observed"]["loaders"]) == ("completed", [])
    assert len(found.steps[0]) == 6
    has_memory_and_phases(found.of("measured"), ("backward", "optimizer"))
    assert len(losses) == 6  # the script prints the loss of an update after it, so not that of the last one
    assert losses == expected


def test_imagenet_of_pytorchs_examples(server: Server, tmp_path: Path) -> None:
    """A loader with a worker, and a script that asks for no gradients only where it evaluates."""
    file = SCRIPTS / "pytorch-examples" / "imagenet" / "main.py"
    arguments = ["-a", "shufflenet_v2_x0_5", "--dummy", "-b", "2", "-j", "1", "-p", "1", "--epochs", "1", "--seed", "1"]
    found, losses, expected = with_and_without(server, tmp_path, file, arguments, r"Epoch: \[0\].*?Loss (\S+)")
    assert found.rank["outcome"] == "completed"
    assert {step["samples"] for step in found.steps[0]} == {"2"}
    has_memory_and_phases(found.of("measured"))
    assert found.rank["observed"]["loaders"][0]["num_workers"] == 1
    assert len(losses) == len(found.steps[0])
    assert losses == expected
