"""Only listed fields leave in an archive, each in a form that holds no name."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass, replace
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import pyarrow as pa
import pytest

from factories import make_run
from multicard.core.layout import ARCHIVED_TABLES
from multicard.core.reasons import LargestUse, MemoryHeld, Reason, UnreportedRank, describe_reason
from multicard.core.sharing import HARDWARE, SETTING, VERSION, Rule
from multicard.runs.record import RecordPart, RunRecord
from multicard.share.allowed import COLUMNS, Allowed
from multicard.trace.tables import ACTIVITIES

ALLOWED = Allowed([make_run(host={"name": name}) for name in ("gamma7.cluster.example", "gamma8")])

HOMES = "/home"  # named apart: no file of the project holds a whole path of a machine


@pytest.mark.parametrize(
    ("text", "becomes"),
    [
        ("on gamma7.cluster.example", "on host-1"),
        ("GAMMA7 and gamma8, not gamma80", "host-1 and host-2, not gamma80"),
        (f"{HOMES}/mplanted/runs/x.json", "x.json"),
        (f"{HOMES}/mplanted", "path"),
        ("--output=/scratch/p1/$SCRATCH/out.pt", "--output=out.pt"),
        ("fused_adam of train.py --data images", "fused_adam of train.py --data images"),
        ("PATHS /opt/a:/srv/b", "PATHS path:path"),
        ("'/srv/my data/x' is not there", "path is not there"),
        ("~/data and ~mplanted/data", "path and path"),
        (f"-I{HOMES}/mplanted/include", "-Ipath"),
        (r"C:\Users\mplanted\x.txt", "x.txt"),
        ("file:///srv/data/x", "path"),
        ("sgemm, 12 samples/s, and/or 1/2", "sgemm, 12 samples/s, and/or 1/2"),
        ("https://me:pass@example.org/x?signature=1", "https://example.org/x"),
        ("AWS_REGION=eu-1 x", "AWS_REGION=removed x"),
        ("my_token: abc", "my_token=removed"),
        ("with hf_aBcDeFgHiJ", "with removed"),
        ("key Zm9vYmFyMTIzNDU2Nzg5QUJDRA", "key removed"),
        ("me@example.org at 10.1.2.3", "address at address"),
        ("nsys 2023.4.4.54-234433681190v0 is on the PATH", "nsys 2023.4.4.54-234433681190v0 is on the PATH"),
        ("tokens_per_sample: 3", "tokens_per_sample: 3"),
    ],
)
def test_free_text(text: str, becomes: str) -> None:
    assert ALLOWED.own(text) == becomes


def test_of_every_text_of_a_record_it_is_decided_whether_it_leaves() -> None:
    private = {text for text in texts_of(RunRecord) if not any(isinstance(rule, Rule) for rule in text.rules)}
    assert {text.name for text in private} == {
        "Binding.note", "LoaderRecord.kind", "LoaderRecord.sampler", "Observed.optimizers", "ScriptRecord.commit",
        "LargestUse.where", "MemoryHeld.snapshot",
    }  # fmt: skip


class Text(NamedTuple):
    """A field of a record that may hold text."""

    name: str
    rules: tuple[object, ...]


def texts_of(part: type) -> Iterator[Text]:
    """All fields of text of a part of a record, and of its parts."""
    for name, hint in get_type_hints(part, include_extras=True).items():
        if name.startswith("_") or name == "model_config":
            continue
        rules = getattr(hint, "__metadata__", ())
        leaves = list(_leaves(hint))
        for leaf in leaves:
            if is_dataclass(leaf) or (isinstance(leaf, type) and issubclass(leaf, RecordPart)):
                yield from texts_of(leaf)
        if str in leaves:
            yield Text(f"{part.__name__}.{name}", rules)


def _leaves(hint: Any) -> Iterator[Any]:
    """The types that a hint is made of."""
    arguments = get_args(hint)
    if not arguments:
        yield hint
    elif get_origin(hint) is Annotated:
        yield from _leaves(arguments[0])
    elif get_origin(hint) is not Literal:
        values = arguments[1:] if get_origin(hint) in (dict, Mapping) else arguments
        for argument in values:
            yield from _leaves(argument)


def test_a_text_that_is_none_of_the_words_of_its_field_stays() -> None:
    def kept(**facts: str) -> dict[str, Any]:
        return ALLOWED.record(make_run(profiler={"used": "none"} | facts)).profiler.model_dump(exclude_unset=True)

    assert kept(why="as configured") == {"used": "none", "why": "as configured"}
    assert kept(why="mplanted has no nsys") == {"used": "none"}
    # A remark says that there was something.
    assert kept(caveat="mplanted") == {"used": "none", "caveat": "limited for a reason that archives leave out"}
    assert kept(caveat="") == {"used": "none"}


def test_versions_leave_in_their_form_under_names_that_hold_no_name() -> None:
    stated = {"torch": "2.11.0", "numpy": "mplanted", "GPU": "NVIDIA H100", "/opt/mplanted": "1.0"}
    assert ALLOWED.record(make_run(versions=stated)).versions == {"torch": "2.11.0", "GPU": "NVIDIA H100"}


def test_commands_are_found_wherever_they_stand() -> None:
    def own(command: object) -> object:
        [scenario] = ALLOWED.own([{"vary": {"command": command}}])
        return scenario["vary"]["command"]

    secret, open_to_all = ["train.py", "--token", "abc"], ["train.py", "--token", "removed"]
    assert own(secret) == open_to_all
    assert own([secret, ["train.py"]]) == [open_to_all, ["train.py"]]


def test_a_parameter_that_a_command_gives_as_a_secret_is_removed_wherever_it_stands() -> None:
    stated = {"scenarios": [{"command": [["train.py", "--token", "{t}"]], "args": {"t": "abc", "u": "abc"}}]}
    [scenario] = ALLOWED.own(stated)["scenarios"]
    assert scenario["args"] == {"t": "removed", "u": "abc"}
    assert ALLOWED.own({"token": None, "seed": 7}) == {"token": None, "seed": 7}


def test_what_a_user_named_and_what_is_synthetic_leaves_without_places() -> None:
    data = {"dataset": f"{HOMES}/mplanted/birds.csv", "source": "imagefolder", "files": []}
    assert ALLOWED.record(make_run(data=data)).data.dataset == "birds.csv"
    assert Allowed().hosts("gamma9 (synthetic)") == "host-1 (synthetic)"


def test_order_and_conditions_of_a_run_stay() -> None:
    state = {"sm_clock_mhz": 1755.0, "power_limit_w": 700.0, "clock_reasons": ["hw_thermal_slowdown", "sw_power_cap"]}
    record = make_run(
        order={"seed": 12345678, "group": ["large-images", "layouts"], "block": 3, "position": 17},
        conditions=[{"others_cpu_s": 1.25, "wall_s": 31.02, "measured_steps": {"wall_s": 7.0}}, None],
        ranks=[{"rank": 0, "gpu_conditions": [{"after": state, "clock_reasons": ["hw_thermal_slowdown"]}, None]}],
    )
    assert ALLOWED.record(record) == record


def test_words_of_tables_stay() -> None:
    for column, words in {
        "class": ["matrix_multiply"],
        "function": ["cudaLaunchKernel", "cuMemcpyHtoDAsync_v2"],
        "collective": ["all_reduce"],
        "operation": ["host_to_device"],
        "phase": ["data"],
        "share": ["nccl"],
        "extent": ["device"],
        "scope": ["steps"],
        "of": [
            "time of all memory operations on the device",
            "time of all CUDA API calls of the process",
            "time of all kernels on the device",
        ],
    }.items():
        assert [COLUMNS[column](word) for word in (*words, "mplanted")] == [*words, None]


def test_every_column_of_text_has_a_rule() -> None:
    texts = {field.name for name in ARCHIVED_TABLES for field in ACTIVITIES[name].schema if field.type == pa.string()}
    assert texts == {*COLUMNS, "report"}


def test_settings_versions_and_names_of_hardware_keep_what_has_their_form() -> None:
    for value in ("0", "INFO", "expandable_segments:True,max_split_size_mb:512"):
        assert SETTING.allowed(value) == value
    assert SETTING.allowed("eth-mplanted") == "set"
    for value in ("2.11.0+cu130", "2.6.0a0+df5bbc09d1", "580.65.06"):
        assert VERSION.allowed(value) == value
    assert [VERSION.allowed(value) for value in ("2.11.0+mplanted", "mplanted")] == ["2.11.0", None]
    for name in (
        "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-40GB", "NVIDIA GeForce RTX 4090", "Tesla V100-SXM2-16GB",
        "Intel(R) Xeon(R) CPU E5-2690 v4 @ 2.60GHz", "AMD EPYC 9334 32-Core Processor", "Intel(R) Xeon(R) w9-3495X",
        "AMD Ryzen 7 PRO 5850U with Radeon Graphics", "synthetic processor", "aarch64", "Neoverse-N1",
    ):  # fmt: skip
        assert HARDWARE.allowed(name) == name


def test_gpus_can_be_told_apart_but_not_found() -> None:
    first, second = "GPU-2f0b5a3c-1111-2222-3333-44445555aaaa", "GPU-2f0b5a3c-1111-2222-3333-44445555bbbb"
    ranks = [{"rank": rank, "gpus": [{"uuid": uuid}]} for rank, uuid in enumerate((first, second, first))]
    scrubbed = Allowed().record(make_run(ranks=ranks))
    assert [rank.gpus[0].uuid for rank in scrubbed.ranks] == ["gpu-1", "gpu-2", "gpu-1"]


@pytest.mark.parametrize(
    ("message", "becomes"),
    [
        (
            "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79 GiB",
            "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.: text removed",
        ),
        ("RuntimeError: no password for xyzzy", "RuntimeError: text removed"),
        ("KeyboardInterrupt", "KeyboardInterrupt"),
        ("anything else", "text removed"),
    ],
)
def test_of_a_message_only_the_kind_of_the_error_is_kept(message: str, becomes: str) -> None:
    failed = make_run(outcome="failed", reason=Reason("error", rank=1, message=message))
    assert ALLOWED.record(failed).reason == Reason("error", rank=1, message=becomes)


@pytest.mark.parametrize(
    "reason",
    [
        Reason("diverged", rank=1, loss="nan", step=7),
        Reason("timed_out", time_limit_s=900.0),
        Reason("killed", signal="SIGTERM", unreported=(UnreportedRank(0, "n1"), UnreportedRank(1, "n2"))),
        Reason("too_few_steps", rank=0, steps=3, needed_steps=71),
    ],
    ids=lambda reason: reason.code,
)
def test_all_facts_of_a_reason_are_kept(reason: Reason) -> None:
    kept = Allowed().record(make_run(outcome="failed", reason=reason)).reason
    assert _without_nodes(kept.record()) == _without_nodes(reason.record())
    assert _without_nodes(describe_reason(kept)) == _without_nodes(describe_reason(reason))


def test_of_what_held_the_memory_only_the_bytes_leave() -> None:
    held = MemoryHeld(
        gpu=0, total_bytes=16_000_000_000, wanted_bytes=1000, bytes={"activations": 3},
        most={"activations": LargestUse(3, "SecretBlock", modules=4)}, snapshot="memory_snapshot.pickle",
    )  # fmt: skip
    record = make_run(outcome="out_of_memory", reason=Reason("out_of_memory", rank=1, held=held))
    kept = Allowed().record(record).reason
    assert kept.held == replace(held, most={"activations": LargestUse(3, modules=4)}, snapshot=None)
    assert describe_reason(kept) == "rank 1: no memory for 1.00 kB more; GPU 0 has 16.0 GB: activations 3 B"


def _without_nodes(said: Any) -> str:
    return re.sub(r"host-\d|n\d", "node", said if isinstance(said, str) else json.dumps(said, sort_keys=True))


def test_hosts_are_counted_in_the_order_of_the_runs_and_words_stay() -> None:
    def named(*names: str) -> Allowed:
        return Allowed([make_run(host={"name": name}) for name in names])

    assert [named("b", "a1", "b2", "a1").own(name) for name in ("a1", "b2")] == ["host-2", "host-3"]
    assert named("train").own("train.py --train images") == "train.py --train images"
    synthetic = make_run(host={"name": "synthetic"})
    assert named("synthetic").record(synthetic).host == synthetic.host


def test_nodes_are_numbered_wherever_they_stand() -> None:
    nodes = [{"name": name, "host": {"name": f"{name}.example.org"}, "hardware": None} for name in ("gpu01", "gpu02")]
    reason = Reason(
        "error", rank=0, node="gpu01", unreported=(UnreportedRank(1, "gpu02"), UnreportedRank(2, "gpu03")),
        message="RuntimeError: Connection closed by peer [10.0.0.7]",
    )  # fmt: skip
    record = make_run(outcome="failed", host=nodes[0]["host"], nodes=nodes, reason=reason)
    kept = Allowed([record]).record(record)
    assert "gpu0" not in str(kept)
    assert describe_reason(kept.reason) == (
        "rank 0 on host-1: RuntimeError: text removed; rank 1 on host-2, 2 on host-3 exited without reporting"
    )
