"""How long it takes to read large traces: NVIDIA's own reports, pandas, and multicard, on the same files in one run.

    python benchmarks/read_traces.py --kernels 1000000 10000000 30000000 --scratch DIR

Writes synthetic traces to the scratch folder (2 GB for 10 M kernels) unless they are there, checks every answer
against their generator's truth, and prints a table. Files are read once before the clock starts, so that the disk
plays no part.
"""

import argparse
import csv
import io
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
MULTICARD = str(Path(sys.prefix) / "bin" / "multicard")
SUMS = "cuda_api,kernels,memory_operations"
METHODS = ("nsys stats", "pandas", "multicard, sums", "multicard, all")

# The sums that pandas can give with as little as it needs: keys and times of the three tables.
PANDAS = """
import json, sqlite3, sys
import pandas as pd
connection = sqlite3.connect(f"file:{sys.argv[1]}?mode=ro", uri=True)
names = pd.read_sql("SELECT id, value FROM StringIds", connection).set_index("id")["value"]
def sums(table, key):
    rows = pd.read_sql(f'SELECT {key} AS key, "end" - start AS duration FROM {table}', connection)
    return rows.groupby("key")["duration"].agg(["count", "sum", "median", "min", "max", "std"])
api = sums("CUPTI_ACTIVITY_KIND_RUNTIME", "nameId")
kernels = sums("CUPTI_ACTIVITY_KIND_KERNEL", "demangledName")
sums("CUPTI_ACTIVITY_KIND_MEMCPY", "copyKind"), sums("CUPTI_ACTIVITY_KIND_MEMSET", "0")
print(json.dumps({kind: {names[key]: [int(row["count"]), int(row["sum"])] for key, row in found.iterrows()}
                  for kind, found in (("cuda_api", api), ("kernels", kernels))}))
"""


def timed(command: list[str]) -> tuple[float, float, str]:
    """Wall time in seconds, peak resident memory in GB, and what it printed."""
    started = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        printed = process.stdout.read()  # type: ignore[union-attr]
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    wall = time.perf_counter() - started
    if process.returncode != 0:
        raise SystemExit(f"{command[0]} ended with {process.returncode}")
    return wall, usage.ru_maxrss / 1e6, printed


def truth_of(path: Path) -> dict[str, dict[str, list[int]]]:
    """Calls and total by name, over all processes."""
    truth = json.loads(path.with_name(f"{path.name}.truth.json").read_text())
    found: dict[str, dict[str, list[int]]] = {"cuda_api": {}, "kernels": {}}
    for table, name in (("cuda_api", "function"), ("kernels", "kernel")):
        for row in truth[table]:
            sums = found[table].setdefault(row[name], [0, 0])
            sums[0] += row["calls"]
            sums[1] += row["total"]
    return found


def of_multicard(printed: str) -> dict[str, dict[str, list[int]]]:
    """The same from multicard's answer."""
    tables = json.loads(printed)["tables"]
    found: dict[str, dict[str, list[int]]] = {"cuda_api": {}, "kernels": {}}
    for table, name in (("cuda_api", "function"), ("kernels", "kernel")):
        for row in tables[table]:
            sums = found[table].setdefault(row[name], [0, 0])
            sums[0] += row["calls"]
            sums[1] += round(row["total_s"] * 1e9)
    return found


def of_nsys(printed: str) -> list[tuple[int, int]]:
    """Calls and totals of NVIDIA's reports, without the names, which they change."""
    rows: list[tuple[int, int]] = []
    for part in printed.split("Time (%)")[1:]:
        for row in csv.DictReader(io.StringIO("Time (%)" + part.split("\n\n")[0])):
            calls = row.get("Num Calls") or row.get("Instances") or row.get("Count")
            rows.append((int(calls or 0), int(row["Total Time (ns)"])))
    return rows


def check(path: Path, method: str, printed: str) -> None:
    """End the program if an answer is not the truth."""
    truth = truth_of(path)
    if method == "nsys stats":
        wanted = sorted(tuple(sums) for table in truth.values() for sums in table.values())
        right = set(wanted) <= set(of_nsys(printed))
    else:
        right = (json.loads(printed) if method == "pandas" else of_multicard(printed)) == truth
    if not right:
        raise SystemExit(f"{method}: its answer on {path.name} is not the truth")


def machine() -> dict[str, str]:
    """What the times were taken on."""
    processors = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in processors if line.startswith("model name")), "?")
    nsys = subprocess.run(["nsys", "--version"], capture_output=True, text=True, check=False).stdout.split()[-1]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return {
        "CPU": f"{model}, {len(os.sched_getaffinity(0))} cores",
        "memory": f"{memory:.0f} GB",
        "system": f"Linux {platform.release()}, Python {platform.python_version()}",
        "nsys": nsys.partition("-")[0],
        "date": time.strftime("%Y-%m-%d"),
    }


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", type=int, nargs="+", default=[1_000_000], help="sizes of the traces")
    parser.add_argument("--scratch", type=Path, required=True, help="folder for the traces")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each method; the fastest counts")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS, help="what to time")
    arguments = parser.parse_args()
    arguments.scratch.mkdir(parents=True, exist_ok=True)
    if shutil.which("nsys") is None:
        parser.error("nsys is not on the PATH (envs/install-nsys.sh)")

    lines = []
    for kernels in arguments.kernels:
        path = arguments.scratch / f"synthetic-{kernels}.sqlite"
        if not path.exists():  # by a process of its own: what starts from a large one seems large itself
            subprocess.run([sys.executable, HERE / "generate.py", path, "--kernels", str(kernels)], check=True)
        with path.open("rb") as file:  # into the page cache
            while file.read(1 << 24):
                pass
        reports = [
            word for name in ("cuda_api", "cuda_gpu_kern", "cuda_gpu_mem_time") for word in ("-r", f"{name}_sum")
        ]
        methods: dict[str, list[str]] = {
            "nsys stats": ["nsys", "stats", "-q", *reports, "-f", "csv", "-o", "-", str(path)],
            "pandas": [sys.executable, "-c", PANDAS, str(path)],
            "multicard, sums": [MULTICARD, "analyze", str(path), "--only", SUMS, "--json"],
            "multicard, all": [MULTICARD, "analyze", str(path), "--json"],
        }
        best: dict[str, tuple[float, float]] = {}
        for _ in range(arguments.repeats):  # interleaved, so that a busy moment does not hit one method alone
            for method, command in methods.items():
                if method not in arguments.methods:
                    continue
                wall, memory, printed = timed(command)
                check(path, method, printed)
                best[method] = min(best.get(method, (wall, memory)), (wall, memory))
                print(f"# {kernels} {method}: {wall:.2f} s, {memory:.2f} GB", file=sys.stderr)
        nsys = best.get("nsys stats", (0.0, 0.0))[0]
        for method, (wall, memory) in best.items():
            share = f"1/{nsys / wall:.1f}" if nsys else ""
            lines.append(f"| {kernels / 1e6:g} M | {method} | {wall:.1f} | {memory:.2f} | {share} |")
    print("; ".join(f"{name}: {value}" for name, value in machine().items()))
    print("\n| kernels | method | wall time (s) | peak memory (GB) | of nsys stats' time |\n|---|---|---|---|---|")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
