"""What names people, machines and places is taken out of texts, and the rest stays."""

import json
import re

import pytest

from multicard.archive.scrub import Scrubber
from multicard.core.reasons import WORDINGS, Reason, describe_reason

SCRUBBER = Scrubber(["gamma7.cluster.example", "gamma8"], ["mplanted"], ["opensesame42"])

HOMES = "/home"  # named apart: no file of the project holds a whole path of a machine


@pytest.mark.parametrize(
    ("text", "becomes"),
    [
        ("on gamma7.cluster.example", "on host-1"),
        ("GAMMA7 and gamma8, not gamma80", "host-1 and host-2, not gamma80"),
        ("by mplanted", "by user"),
        ("job of MPlanted_2", "job of user_2"),
        (f"{HOMES}/mplanted/runs/x.json", "path"),
        ("--output=/scratch/p1/$SCRATCH/report.nsys-rep", "--output=path"),
        ("PATHS /opt/a:/srv/b", "PATHS path:path"),
        ("'/srv/my data/x' is not there", "path is not there"),
        ("~/data and ~mplanted/data", "path and path"),
        (f"-I{HOMES}/mplanted/include", "-Ipath"),
        (r"C:\Users\mplanted\x.txt", "path"),
        ("file:///srv/data/x", "path"),
        ("sgemm, 12 samples/s, and/or 1/2", "sgemm, 12 samples/s, and/or 1/2"),
        ("https://me:pass@example.org/x?signature=1", "https://example.org/x"),
        ("AWS_REGION=eu-1 x", "AWS_REGION=removed x"),
        ("my_token: abc", "my_token=removed"),
        ("Bearer abc.def", "bearer removed"),
        ("with hf_aBcDeFgHiJ", "with removed"),
        ("key Zm9vYmFyMTIzNDU2Nzg5QUJDRA", "key removed"),
        ("opensesame42!", "removed!"),
        ("me@example.org at 10.1.2.3 and fe80:0:0:1:2:3:4:5", "address at address and address"),
        ("GPU-2f0b5a3c-1111-2222-3333-444455556666", "gpu-1"),
        ("nsys 2023.4.4.54-234433681190v0 is on the PATH", "nsys 2023.4.4.54-234433681190v0 is on the PATH"),
        ("tokens_per_sample: 3", "tokens_per_sample: 3"),
        ("nsys export of report ended with 1, saying: anything at all", "nsys export of report ended with 1"),
    ],
)
def test_free_text(text: str, becomes: str) -> None:
    assert SCRUBBER.text(text) == becomes


def test_order_and_conditions_of_a_run_stay() -> None:
    state = {"sm_clock_mhz": 1755, "power_limit_w": 700.0, "clock_reasons": ["sw_power_cap", "hw_thermal_slowdown"]}
    host = {"before": {"cpu_frequency_mhz": 2600.002, "load_average": 0.1}, "others_cpu_s": 1.25, "wall_s": 31.02}
    facts = {
        "order": {"seed": 12345678, "group": ["large-images", "layouts"], "block": 3, "position": 17},
        "conditions": [host, None],
        "ranks": [{"gpu_conditions": [{"after": state, "held_back_s": {"power": 4.0, "sync_boost": 0.0}}]}],
    }
    record = {"run": "r", "parameters": {}, "reason": None, **facts}
    assert SCRUBBER.record(record) == record


@pytest.mark.parametrize(
    "kernel",
    [
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1>>(int)",
        "sm90_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize128x128x32_warpgroupsize1x1x1_execute_segment_k_off_kernel",
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    ],
)
def test_names_of_kernels_stay(kernel: str) -> None:
    assert SCRUBBER.name(kernel) == kernel


def test_gpus_can_be_told_apart_but_not_found() -> None:
    first, second = "GPU-2f0b5a3c-1111-2222-3333-44445555aaaa", "GPU-2f0b5a3c-1111-2222-3333-44445555bbbb"
    ranks = [{"gpus": [{"uuid": uuid}]} for uuid in (first, second, first)]
    scrubbed = Scrubber([], []).record({"run": "r", "parameters": {}, "ranks": ranks})
    assert [rank["gpus"][0]["uuid"] for rank in scrubbed["ranks"]] == ["gpu-1", "gpu-2", "gpu-1"]


# As PyTorch 2.11 words it, without its advice.
NUMBERS = (
    "OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 1 has a total capacity of 79.15 GiB of "
    "which 1.20 GiB is free. Process 77 has 3.00 GiB memory in use. Including non-PyTorch memory, this process has "
    "74.93 GiB memory in use. 76.00 GiB allowed; Of the allocated memory 72.00 GiB is allocated by PyTorch, with "
    "1.25 GiB allocated in private pools (e.g., CUDA Graphs), and 1.50 GiB is reserved by PyTorch but unallocated."
)


@pytest.mark.parametrize(
    ("message", "becomes"),
    [
        (
            "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79 GiB "
            "of which 1.1 GiB is free. Process 77 has 3 GiB",
            "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79 GiB "
            "of which 1.1 GiB is free.: text removed",
        ),
        (NUMBERS, NUMBERS),
        (f"{NUMBERS} Something else.", f"{NUMBERS}: text removed"),
        ("RuntimeError: no password for xyzzy", "RuntimeError: text removed"),
        ("KeyboardInterrupt", "KeyboardInterrupt"),
        ("anything else", "text removed"),
    ],
)
def test_of_a_message_only_the_kind_of_the_error_is_kept(message: str, becomes: str) -> None:
    reason = {"code": "error", "rank": 1, "message": message}
    assert SCRUBBER.reason(reason) == {"code": "error", "rank": 1, "message": becomes}
    assert SCRUBBER.reason(message) == becomes  # a record from before reasons had fields


REASONS = [
    Reason("out_of_memory", rank=3, node="n2"),
    Reason("diverged", rank=1, loss="nan", step=7),
    Reason("timed_out", time_limit_s=900.0),
    Reason("killed", rank=0, signal="SIGKILL"),
    Reason("killed", signal="SIGTERM", unreported=[{"rank": 0, "node": "n1"}, {"rank": 1, "node": "n2"}]),
    Reason("exited", exit_code=3, unreported=[{"rank": 0}]),
    Reason("wrong_gpus", devices=4, gpus=2),
    Reason("error", rank=1),
    Reason("cannot_run"),
    Reason("job_lost"),
    Reason("no_torch"),
    Reason("no_steps"),
    Reason("too_few_steps", rank=0, steps=3, needed_steps=71),
    Reason("steps_disagree", rank=1, step=12),
    Reason("hidden_ranks", ranks=1, devices=2),
    Reason("unused_gpus", devices=4, gpus=1),
    Reason("same_rank", rank=0, ranks=2),
    Reason("trained_on_cpu"),
]


@pytest.mark.parametrize("reason", REASONS, ids=lambda reason: reason.code)
def test_all_facts_of_a_reason_are_kept_whatever_its_wording(reason: Reason, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WORDINGS, reason.code, f"a new wording of {reason.code}: {{signal}} {{step}} {{exit_code}}")
    # A machine of that name must not take a code away.
    scrubber = Scrubber(["gamma7", "killed", "SIGKILL"], [])
    scrubbed = scrubber.reason(reason.record())
    assert scrubbed == reason.record()
    assert describe_reason(scrubbed) == describe_reason(reason.record())
    assert "a new wording" in describe_reason(scrubbed)


def test_every_code_is_scrubbed_in_these_tests() -> None:
    assert {reason.code for reason in REASONS} == set(WORDINGS)


def test_accounts_that_name_nobody_are_no_secret() -> None:
    assert Scrubber([], ["root"]).text("the root of the tree") == "the root of the tree"


def test_hosts_are_counted_in_the_order_of_the_runs_and_stay_the_same() -> None:
    records = [{"host": {"name": name}} for name in ("b", "a1", "b2", "a1")]
    scrubber = Scrubber.of(records)
    assert [scrubber.text(name) for name in ("a1", "b2")] == ["host-2", "host-3"]


def test_a_host_of_that_name_does_not_take_the_mark_of_made_up_runs_away() -> None:
    assert Scrubber(["synthetic", "gamma7"], []).text("synthetic GPU on gamma7") == "synthetic GPU on host-2"


def test_users_are_found_in_the_paths_of_records() -> None:
    scrubber = Scrubber.of([{"command": ["--data", f"{HOMES}/qplanted/data"]}])
    assert scrubber.text("made by qplanted") == "made by user"


def test_values_of_secret_variables_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", "plain words")
    assert Scrubber.of([]).text("it says plain words here") == "it says removed here"


def test_names_of_nodes_are_replaced_wherever_they_stand() -> None:
    nodes = [{"name": name, "host": {"name": f"{name}.example.org"}, "hardware": None} for name in ("gpu01", "gpu02")]
    reason = Reason(
        "error", rank=0, node="gpu01", unreported=[{"rank": 1, "node": "gpu02"}],
        message="RuntimeError: Connection closed by peer [10.0.0.7]",
    )  # fmt: skip
    record = {"run": "r", "parameters": {}, "host": nodes[0]["host"], "nodes": nodes, "reason": reason.record()}
    scrubber = Scrubber.of([record])
    assert scrubber.holds("gpu02") and scrubber.holds("gpu02.example.org")
    scrubbed = scrubber.record(record)
    assert not scrubber.holds(str(scrubbed))
    said = describe_reason(scrubbed["reason"])
    assert re.fullmatch(
        r"rank 0 on host-\d+: RuntimeError: text removed; rank 1 on host-\d+ exited without reporting", said
    )


def test_the_node_that_a_reason_names_is_replaced_though_no_rank_told_of_it() -> None:
    reason = {"code": "cannot_run", "node": "gpu7.example.org", "unreported": [{"rank": 1, "node": "gpu8"}]}
    scrubber = Scrubber.of([{"reason": reason}])
    assert "gpu7" not in json.dumps(scrubber.reason(reason)) and "gpu8" not in json.dumps(scrubber.reason(reason))
