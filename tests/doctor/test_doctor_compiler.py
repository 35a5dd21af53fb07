"""Doctor compiles a small function where runs of an experiment do."""

import getpass
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from multicard.core.system import Answer
from multicard.doctor import compiler
from multicard.doctor.checks import Check

ON_GPU = {"torch": "2.11.0", "started": True}


def looked(monkeypatch: pytest.MonkeyPatch, facts: dict[str, Any], *runs: Any) -> tuple[list[Check], list[str]]:
    """Checks for such runs, and the devices that were compiled for, with a program that leaves a kernel on a GPU."""
    devices = []

    def fake(command: list[str], _limit_s: float, environment: dict[str, str]) -> Answer:
        devices.append(command[-1])
        if command[-1] == "cuda":
            Path(environment["TRITON_CACHE_DIR"]).mkdir()
            Path(environment["TRITON_CACHE_DIR"], "kernel.cubin").touch()
        return Answer(compiler.DONE)

    monkeypatch.setattr(compiler, "ask", fake)
    return compiler.checks(facts, [SimpleNamespace(parameters=SimpleNamespace(**run)) for run in runs]), devices


@pytest.mark.parametrize(
    ("run", "devices"),
    [
        ({"device": "cuda", "compile": False, "cuda_graphs": True}, ["cuda"]),
        ({"device": "cuda", "compile": False, "packed": True}, ["cuda"]),  # flex attention
        ({"device": "cpu", "compile": True}, ["cpu"]),
        ({"device": "cpu", "compile": False, "packed": True}, []),
        ({"device": "cuda", "compile": False}, []),
    ],
)
def test_it_compiles_for_the_devices_of_runs_that_compile(
    monkeypatch: pytest.MonkeyPatch, run: dict[str, Any], devices: list[str]
) -> None:
    found, asked = looked(monkeypatch, ON_GPU, run)
    assert asked == devices
    assert [check.verdict for check in found] == ["ok"] * len(devices)


def test_a_kernel_that_is_not_compiled_or_wrong_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    run = SimpleNamespace(parameters=SimpleNamespace(device="cuda", compile=True))
    monkeypatch.setattr(compiler, "ask", lambda *_: Answer(compiler.DONE))
    [found] = compiler.checks(ON_GPU, [run])
    assert (found.verdict, found.found) == ("warning", "compiled, but not by Triton")
    monkeypatch.setattr(compiler, "ask", lambda *_: Answer("", "python ended with 1, saying: AssertionError"))
    [found] = compiler.checks(ON_GPU, [run])
    assert (found.check, found.verdict) == ("Triton kernel", "error")
    assert found.found == "cannot be compiled: python ended with 1, saying: AssertionError"
    # Without a GPU that starts nothing is compiled for one.
    assert compiler.checks({"torch": "2.11.0", "gpus": []}, [run]) == []


@pytest.mark.slow
def test_a_machine_without_compiler_is_told_so_and_one_with_it_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_VEC_ISA_OK", "1")  # spares the compilations that ask for vector instructions
    run = SimpleNamespace(parameters=SimpleNamespace(device="cpu", compile=True))
    [found] = compiler.checks({"torch": "2.11.0"}, [run], limit_s=1200)
    assert (found.check, found.verdict) == ("torch.compile on CPUs", "ok")
    monkeypatch.setenv("CXX", "missing-compiler")
    [found] = compiler.checks({"torch": "2.11.0"}, [run], limit_s=1200)
    assert (found.verdict, found.found.partition(":")[0]) == ("error", "cannot be compiled")


def test_a_user_that_the_system_does_not_know_compiles_as_in_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    # PyTorch's compiler asks for the user's name (torch._dynamo.config), which a container need not know.
    def unknown() -> str:
        raise KeyError("getpwuid(): uid not found: 12345")

    def fake(_command: list[str], _limit_s: float, environment: dict[str, str]) -> Answer:
        names.append(environment.get("USER"))
        return Answer(compiler.DONE)

    names: list[str | None] = []
    monkeypatch.setattr(getpass, "getuser", unknown)
    for name in ("USER", "LOGNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(compiler, "ask", fake)
    compiler.checks({"torch": "2.11.0"}, [SimpleNamespace(parameters=SimpleNamespace(device="cpu", compile=True))])
    assert names == [f"uid-{os.getuid()}"]
