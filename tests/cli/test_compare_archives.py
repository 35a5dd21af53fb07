"""`multicard compare` of archives: a machine and a session are the same ones there as in the folder that was packed.

The runs are synthetic: their steps last as long as is said, on machines that are named.
"""

from pathlib import Path
from typing import Any

import pytest

from console import multicard
from multicard.config.load import check
from multicard.share.pack import pack
from script_runs import configuration, parameters_of_all, write_script_run

DIGESTS = {"node07.cluster": "07" * 16, "node99.cluster": "99" * 16}
SPREAD = (1.0, 1.002, 0.998)  # of repeats
CONFIG = configuration(
    vary={"devices": [1], "args": {"batch_size": [32, 64], "amp": ["none"]}}, repeats=3, figures=["step_breakdown"]
)


def measured(
    folder: Path, name: str = "node07.cluster", times: float = 1.0, hour: int = 10, digest: bool = True, **keys: Any
) -> Path:
    """Results of two configurations with three repeats each, which took 20 minutes on a machine."""
    host = {"name": name, "system": "Linux-6.18.44-fc-v595-x86_64-with-glibc2.36"}
    if digest:
        host["machine_digest"] = DIGESTS[name]
    day = f"2026-11-22T{hour}"
    times_of_run = {"started": f"{day}:00:00+00:00", "ended": f"{day}:20:00+00:00"}
    for p in parameters_of_all(CONFIG):
        step_s = 0.1 * times * SPREAD[p.repeat - 1]
        facts = {"host": host, "variables": {"NCCL_ALGO": "Ring"}} | times_of_run | keys
        write_script_run(folder, p, step_s, **facts)
    return folder


def archived(results: Path) -> Path:
    """The archive of results, beside them."""
    archive = results.with_name(f"{results.name}.tar.gz")
    pack(check({"results": str(results), **CONFIG}, "mine.yaml", outside=False), archive)
    return archive


def compared(*paths: Path, fail_above: str | None = "3%") -> tuple[int, str]:
    done = multicard("compare", *paths, *(["--fail-above", fail_above] if fail_above else []))
    return done.returncode, done.stdout + done.stderr


def test_a_regression_is_found_from_an_archive_to_a_folder_and_between_archives(tmp_path: Path) -> None:
    old, new = measured(tmp_path / "old"), measured(tmp_path / "new", times=1.5)
    old_archive, new_archive = archived(old), archived(new)
    for before, after in ((old, new), (old_archive, new), (old, new_archive), (old_archive, new_archive)):
        code, printed = compared(before, after)
        assert code == 1 and printed.startswith("iteration time: 2 regressions of 2 configurations\n")
        assert "50.0% slower (95% CI " in printed and "differs" not in printed


def test_results_equal_their_own_archive(tmp_path: Path) -> None:
    results = measured(tmp_path / "results")
    archive = archived(results)
    equal = "iteration time: 0 regressions, 2 within the tolerance of 3% of 2 configurations\n"
    # 0.998, 1 and 1.002 scatter by 0.2%, so that 2% is ten standard deviations.
    equal += "repeats of each side: 2 would show a difference of 2% (scatter 0.2%)\n"
    for before, after in ((archive, results), (results, archive), (archive, archive)):
        assert compared(before, after) == (0, equal)
        code, printed = compared(before, after, fail_above=None)
        assert code == 0 and "differs" not in printed and "caveat" not in printed


def test_archives_of_two_machines_are_two_sessions(tmp_path: Path) -> None:
    one, other = measured(tmp_path / "one"), measured(tmp_path / "other", "node99.cluster", times=1.5)
    one_archive, other_archive = archived(one), archived(other)
    named = f"differs: digest of the machine: 07070707 in {one_archive}, 99999999 in {other_archive}"
    for before, after, difference in (
        (one, other, "differs: machine: node07.cluster in "),
        (one_archive, other, ""),
        (one_archive, other_archive, named),
    ):
        code, printed = compared(before, after)
        assert code == 2 and printed.startswith("iteration time: 2 of 2 configurations cannot be judged\n")
        assert "one machine" in printed, "what to do is said"
        assert difference in printed


def test_a_machine_at_another_hour_is_another_session_in_an_archive_too(tmp_path: Path) -> None:
    one, later = measured(tmp_path / "one"), measured(tmp_path / "later", hour=12)
    one_archive = archived(one)
    for before, after in ((one, later), (one_archive, later), (one_archive, archived(later))):
        assert compared(before, after)[0] == 2


def test_without_digests_the_names_in_folders_count_and_archives_tell_no_machine(tmp_path: Path) -> None:
    old = measured(tmp_path / "old", digest=False)
    new = measured(tmp_path / "new", times=1.5, digest=False)
    assert compared(old, new)[0] == 1
    archive = archived(old)
    code, printed = compared(archive, new)
    assert code == 2
    assert f"the machine of {archive} is not recorded" in printed
    # Synthetic machines have no digest, and leave in archives as they are.
    old, new = (measured(tmp_path / f"synthetic{times}", times=times, host={"name": "synthetic"}) for times in (1, 1.5))
    assert compared(archived(old), new)[0] == 1


def test_two_machines_of_one_name_are_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = measured(tmp_path / "one", "node07.cluster")
    monkeypatch.setitem(DIGESTS, "node07.cluster", "ab" * 16)
    other = measured(tmp_path / "other", "node07.cluster", times=1.5)
    code, printed = compared(one, other)
    assert code == 2 and f"differs: digest of the machine: 07070707 in {one}, abababab in {other}" in printed
