"""Every row of the table of frameworks is held by a test, or says that nobody tried it."""

import re

import test_frameworks

from conftest import ROOT
from script.equipment import CASES, ON_GPUS

PAGE = ROOT / "docs" / "own-training.md"
PUBLISHED = (ROOT / "tests" / "script" / "test_scripts_of_others.py").read_text(encoding="utf-8")
SLURM = (ROOT / "tests" / "slurm" / "test_slurm_ended.py").read_text(encoding="utf-8")
ON_SLURM = "def test_the_ranks_of_a_script_find_each_other_whatever_starts_them(" in SLURM
EMULATED = (ROOT / "tests" / "emulated" / "test_emulated_scripts.py").read_text(encoding="utf-8")
# Rows whose tests are no cases; those of emulated GPUs by the name of the function.
ON_CPUS = {
    "torchtune, command": hasattr(test_frameworks, "test_torchtune_by_its_own_command"),
    "pytorch/examples imagenet, python": "def test_imagenet_of_pytorchs_examples(" in PUBLISHED,
    "nanoGPT, python": "def test_nanogpt(" in PUBLISHED,
    "DDP, srun": ON_SLURM,
    "DDP on two nodes, torchrun": ON_SLURM,
    "DDP on two nodes, srun": ON_SLURM,
}
OF_EMULATED = {
    "nn.DataParallel, python": "test_one_process_on_several_gpus",
    "pytorch/examples imagenet by nn.DataParallel, python": "test_imagenet_of_pytorchs_examples",
    "pytorch/examples imagenet, python": "test_imagenet_of_pytorchs_examples",
    "pytorch/examples imagenet, command": "test_imagenet_of_pytorchs_examples",
    "pytorch/examples FSDP2, torchrun": "test_fsdp2_of_pytorchs_examples",
    "torchtune on several devices, command": "test_torchtune_by_its_own_command",
    "nanoGPT, torchrun": "test_nanogpt_under_ddp",
}
ALL = ["yes"] * 4
WITHOUT_A_LOADER = {
    "nanoGPT, python": ["yes", "backward, optimizer", "as stated", "yes"],
    "nanoGPT, torchrun": ["yes", "backward, optimizer", "as stated", "yes"],
    "pytorch/examples FSDP2, torchrun": ["yes", "backward, optimizer", "no", "yes"],
}


def rows() -> dict[str, list[str]]:
    """Cells of the table by framework and launcher."""
    [table] = re.findall(
        r"^\| Framework \| Launcher .*\n\|[-|]+\n((?:\|.*\n)+)", PAGE.read_text(encoding="utf-8"), re.M
    )
    cells = [[cell.strip().replace("`", "") for cell in line.strip("|").split("|")] for line in table.splitlines()]
    return {f"{framework}, {launcher}": others for framework, launcher, *others in cells}


def test_what_the_table_says_is_tested_or_untried() -> None:
    on_cpus = CASES.keys() | {name for name, is_tested in ON_CPUS.items() if is_tested}
    on_gpus = {*ON_GPUS} | {name for name, test in OF_EMULATED.items() if f"def {test}(" in EMULATED}
    for row, (_, tested_on, *cells) in rows().items():
        where = [place for place, names in (("CPU", on_cpus), ("emulated GPU", on_gpus)) if row in names]
        assert tested_on == (", ".join(where) or "untried"), row
        assert cells == (WITHOUT_A_LOADER.get(row, ALL) if where else ["untried"] * 4), row
    assert on_cpus | on_gpus <= rows().keys()


def test_numbers_of_devices_are_those_of_the_tests() -> None:
    assert {name: rows()[name][0] for name in CASES} == {name: str(case.devices) for name, case in CASES.items()}
