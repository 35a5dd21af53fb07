"""Under `--sdm env-modules` a run loads the modules of the configuration, and what they set reaches the job."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from conftest import ROOT, TINY, add_digits, path_without_nsys, ran
from machine.faked_programs import put

pytestmark = pytest.mark.slow

INIT = Path("/usr/share/modules/init/bash")  # of Debian's environment-modules
SNAKEMAKE = Path(sys.executable).parent / "snakemake"
# A fake of the `module` command of a cluster: it sources a file of shell assignments by the module's name.
FAKE = '() {\n if [ "$1" = load ]; then shift; for m; do . "$FAKE_MODULES/$m.sh" || return 1; done; fi\n}'
# A fake of nsys, which only the module brings: it writes down the job's environment, and records nothing.
NSYS = """
[ "$1" = --version ] && echo NVIDIA Nsight Systems version 2025.3.2 && exit
env > {folder}/environment
exit 1
"""


def modules(folder: Path) -> Path:
    """Folder with the module tools/1.0, as a modulefile and as shell assignments."""
    (folder / "bin").mkdir()
    put(folder / "bin", "nsys", NSYS.format(folder=folder))
    path = folder / "modules" / "tools"
    path.mkdir(parents=True)
    (path / "1.0").write_text(
        f"#%Module1.0\nprepend-path PATH {folder}/bin\nprepend-path LD_LIBRARY_PATH {folder}/lib\n"
        f"prepend-path CPATH {folder}/include\nsetenv CUDA_HOME {folder}\nsetenv API_TOKEN hunter2\n"
    )
    (path / "1.0.sh").write_text(
        f"export PATH={folder}/bin:$PATH LD_LIBRARY_PATH={folder}/lib CPATH={folder}/include\n"
        f"export CUDA_HOME={folder} API_TOKEN=hunter2\n"
    )
    return folder / "modules"


def launched(folder: Path, digits: Path, kind: str, module: str) -> subprocess.CompletedProcess[str]:
    """Launch the only run of an experiment that asks for a module."""
    scenario = {"question": "?", "fixed": TINY | {"profiler": "auto"}, "figures": ["step_breakdown"]}
    stated = {"results": str(folder / "results"), "modules": [module], "scenarios": {"a": scenario}}
    (folder / "mine.yaml").write_text(yaml.safe_dump(stated))
    known = modules(folder)
    add_digits(folder / "work", digits)
    environment = {k: v for k, v in os.environ.items() if k not in ("MODULEPATH", "LD_LIBRARY_PATH")}
    environment |= {"PATH": path_without_nsys(), "MODULEPATH": str(known)}
    target = str(folder / "results" / "scenarios" / "a" / "runs.csv")
    command = [str(SNAKEMAKE), "--sdm", "env-modules", "--cores", "1", "--configfile", str(folder / "mine.yaml")]
    command += ["--snakefile", str(ROOT / "workflow/Snakefile"), "--directory", str(folder / "work"), "--", target]
    if kind == "real":
        command = ["bash", "-c", f". {INIT}; module use {shlex.quote(str(known))}; exec {shlex.join(command)}"]
    else:
        environment |= {"BASH_FUNC_module%%": FAKE, "FAKE_MODULES": str(known)}
    return ran(*command, env=environment)


KINDS = ["fake", pytest.param("real", marks=pytest.mark.skipif(not INIT.exists(), reason="needs environment-modules"))]


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_module_sets_reaches_the_job_and_secrets_do_not(digits: Path, tmp_path: Path, kind: str) -> None:
    ended = launched(tmp_path, digits, kind, "tools/1.0")
    assert "Activating environment modules: tools/1.0" in ended.stderr, ended.stderr
    job = dict(line.split("=", 1) for line in (tmp_path / "environment").read_text().splitlines() if "=" in line)
    assert f"{tmp_path}/bin" in job["PATH"].split(":")
    assert job["PATH"].split(":")[0] == str(Path(sys.executable).parent)  # a module's Python does not take its place
    assert job["CUDA_HOME"] == str(tmp_path)
    assert job["LD_LIBRARY_PATH"].split(":")[0] == f"{tmp_path}/lib"
    assert job["CPATH"].split(":")[0] == f"{tmp_path}/include"
    assert "API_TOKEN" not in job


def test_a_module_that_cannot_be_loaded_stops_the_run_before_it_begins(digits: Path, tmp_path: Path) -> None:
    ended = launched(tmp_path, digits, "fake", "tools/9")
    assert ended.returncode == 1
    assert not list(tmp_path.glob("results/runs/*/run.json"))
    assert not (tmp_path / "environment").exists()
    assert "tools/9" in ended.stderr
