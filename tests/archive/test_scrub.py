"""What names people, machines and places is taken out of texts, and the rest stays."""

import re

import pytest

from multicard.archive.scrub import Scrubber

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
        ("GPU-2f0b5a3c-1111-2222-3333-444455556666", "card"),
        ("nsys 2023.4.4.54-234433681190v0 is on the PATH", "nsys 2023.4.4.54-234433681190v0 is on the PATH"),
        ("tokens_per_sample: 3", "tokens_per_sample: 3"),
        ("nsys export of report ended with 1, saying: anything at all", "nsys export of report ended with 1"),
    ],
)
def test_free_text(text: str, becomes: str) -> None:
    assert SCRUBBER.text(text) == becomes


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


@pytest.mark.parametrize(
    ("reason", "becomes"),
    [
        ("ended after its time limit of 15 min", "ended after its time limit of 15 min"),
        ("the loss of rank 1 is nan at step 7", "the loss of rank 1 is nan at step 7"),
        (
            "rank 0: ended by SIGKILL, as the system does when memory runs out; see results/mplanted/log.txt",
            "rank 0: ended by SIGKILL, as the system does when memory runs out: text removed",
        ),
        ("exit code 3, no word from rank 0, 1; see x", "exit code 3, no word from rank 0, 1: text removed"),
        (
            "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79 GiB "
            "of which 1.1 GiB is free. Process 77 has 3 GiB",
            "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79 GiB: "
            "text removed",
        ),
        ("rank 1: RuntimeError: no password for xyzzy", "rank 1: RuntimeError: text removed"),
        ("anything else", "text removed"),
        (None, None),
    ],
)
def test_of_a_reason_only_known_wordings_stay(reason: str | None, becomes: str | None) -> None:
    assert SCRUBBER.reason(reason) == becomes


def test_accounts_that_name_nobody_are_no_secret() -> None:
    assert Scrubber([], ["root"]).text("the root of the tree") == "the root of the tree"


def test_hosts_are_counted_in_the_order_of_the_runs_and_stay_the_same() -> None:
    records = [{"host": {"name": name}} for name in ("b", "a1", "b2", "a1")]
    scrubber = Scrubber.of(records)
    assert [scrubber.text(name) for name in ("a1", "b2")] == ["host-2", "host-3"]


def test_a_host_of_that_name_does_not_take_the_mark_of_made_up_runs_away() -> None:
    assert Scrubber(["synthetic", "gamma7"], []).text("synthetic card on gamma7") == "synthetic card on host-2"


def test_users_are_found_in_the_paths_of_records() -> None:
    scrubber = Scrubber.of([{"command": ["--data", f"{HOMES}/qplanted/data"]}])
    assert scrubber.text("made by qplanted") == "made by user"


def test_values_of_secret_variables_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", "plain words")
    assert Scrubber.of([]).text("it says plain words here") == "it says removed here"


def test_names_of_nodes_are_replaced_wherever_they_stand() -> None:
    nodes = [{"name": name, "host": {"name": f"{name}.example.org"}, "hardware": None} for name in ("gpu01", "gpu02")]
    reason = "no word from rank 1 on gpu02; rank 0 on gpu01: RuntimeError: Connection closed by peer [10.0.0.7]"
    record = {"run": "r", "parameters": {}, "host": nodes[0]["host"], "nodes": nodes, "reason": reason}
    scrubber = Scrubber.of([record])
    assert scrubber.holds("gpu02") and scrubber.holds("gpu02.example.org")
    scrubbed = scrubber.record(record)
    assert not scrubber.holds(str(scrubbed))
    assert re.fullmatch(r"no word from rank 1 on host-\d+: text removed", scrubbed["reason"])
