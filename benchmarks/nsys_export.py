"""Write what the simulated processes did into the tables of an export of Nsight Systems."""

import json
import sqlite3
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
from catalogue import (
    COLLECTIVE_STREAM,
    COMPUTE_STREAM,
    COPY_STREAM,
    FUNCTIONS,
    MEMORY_KINDS,
    OPTIMIZER,
    RANGES,
    Catalogue,
)
from nsys_schema import ENUMERATIONS, PRODUCT_VERSION, SCHEMA_VERSION, TABLES
from simulation import Activity, Columns

FIRST_PID = 4000
AUTOGRAD_TID_OFFSET = 1000
MACHINE = 1 << 48
SESSION_START_NS = 1_700_000_000_000_000_000
NO_EVENT = 2**32 - 1
MARK, PUSH_POP_RANGE, DOMAIN_CREATE = 34, 59, 75
NCCL_DOMAIN = 1
THREADS = ("python3", "pt_autograd_0")


def global_pid(rank: np.ndarray) -> np.ndarray:
    """A process as nsys numbers it."""
    return MACHINE | (FIRST_PID + rank) << 24


def global_tid(rank: np.ndarray, thread: np.ndarray | int = 0) -> np.ndarray:
    """A thread as nsys numbers it: the main thread (0) or the one that runs backward (1)."""
    return global_pid(rank) | (FIRST_PID + rank + AUTOGRAD_TID_OFFSET * thread)


class Export:
    """A database with the tables of an export, filled by appending columns."""

    def __init__(self, path: Path, catalogue: Catalogue, devices: int) -> None:
        self.catalogue = catalogue
        self.devices = devices
        self.connection = sqlite3.connect(path, isolation_level=None)
        self.cursor = self.connection.cursor()
        for statement in ("PRAGMA journal_mode=off", "PRAGMA synchronous=off", "PRAGMA cache_size=-100000"):
            self.cursor.execute(statement)
        for table, columns in TABLES.items():
            declared = ", ".join(f"{name} {declaration}" for name, declaration in columns.items())
            self.cursor.execute(f"CREATE TABLE {table} ({declared})")
        texts = [kernel[key] for kernel in catalogue.kernels for key in ("kernel", "short_name")]
        texts += [function.name for function in FUNCTIONS] + [*RANGES, *THREADS]
        self.strings = {text: number for number, text in enumerate(dict.fromkeys(texts))}

    def ids(self, texts: list[str]) -> np.ndarray:
        """Numbers of texts in StringIds."""
        return np.array([self.strings[text] for text in texts])

    def append(self, table: str, rows: int, **columns: Any) -> None:
        """Add rows; a column is an array or one value for all rows, and NULL where not named."""
        values = [columns.pop(name, None) for name in TABLES[table]]
        if columns:
            raise ValueError(f"{table} has no columns {', '.join(columns)}")
        lists = [list(repeat(value, rows)) if value is None or np.isscalar(value) else value for value in values]
        lists = [value.tolist() if isinstance(value, np.ndarray) else value for value in lists]
        self.cursor.execute("BEGIN")
        marks = ", ".join("?" * len(values))
        self.cursor.executemany(f"INSERT INTO {table} VALUES ({marks})", zip(*lists, strict=True))
        self.cursor.execute("COMMIT")

    def append_activity(self, activities: dict[int, Activity]) -> None:
        """Add what the ranks did in a while."""
        self._kernels(together({rank: activity.kernels for rank, activity in activities.items()}))
        self._memory(together({rank: activity.memory for rank, activity in activities.items()}))
        calls = together({rank: activity.calls for rank, activity in activities.items()})
        self.append(
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            len(calls["start"]),
            start=calls["start"],
            end=calls["end"],
            eventClass=np.array([function.api == "driver" for function in FUNCTIONS], int)[calls["function"]],
            globalTid=global_tid(calls["rank"], calls["thread"]),
            correlationId=calls["correlation"],
            nameId=self.ids([function.name for function in FUNCTIONS])[calls["function"]],
            returnValue=0,
        )
        if all(activity.ranges for activity in activities.values()):
            waits = together({rank: activity.synchronizations for rank, activity in activities.items()})
            on_device = self._on_device(waits) | {"streamId": COMPUTE_STREAM}
            rows = len(waits["start"])
            self.append("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", rows, **on_device, syncType=3, eventId=NO_EVENT)
            self._ranges(together({rank: activity.ranges for rank, activity in activities.items()}))

    @staticmethod
    def _on_device(columns: Columns) -> dict[str, Any]:
        return {
            "start": columns["start"],
            "end": columns["end"],
            "deviceId": columns["rank"],
            "contextId": 1,
            "streamId": columns.get("stream"),
            "correlationId": columns["correlation"],
            "globalPid": global_pid(columns["rank"]),
        }

    def _kernels(self, kernels: Columns) -> None:
        """Kernels by their end: neither by process nor by start, like the buffers of a real trace."""
        order = np.argsort(kernels["end"], kind="stable")
        kernels = {key: column[order] for key, column in kernels.items()}
        name, shape = self.catalogue.name[kernels["shape"]], kernels["shape"]
        rows = self.catalogue.kernels
        sizes = {f"grid{axis}": self.catalogue.grid[shape, number] for number, axis in enumerate("XYZ")}
        sizes |= {f"block{axis}": self.catalogue.block[shape, number] for number, axis in enumerate("XYZ")}
        self.append(
            "CUPTI_ACTIVITY_KIND_KERNEL",
            len(shape),
            **self._on_device(kernels),
            **sizes,
            demangledName=self.ids([row["kernel"] for row in rows])[name],
            shortName=self.ids([row["short_name"] for row in rows])[name],
            registersPerThread=np.array([int(row["registers"]) for row in rows])[name],
            gridId=kernels["correlation"],
            launchType=1,
            cacheConfig=1,
            staticSharedMemory=0,
            dynamicSharedMemory=0,
            localMemoryPerThread=0,
            localMemoryTotal=250_871_808,
            sharedMemoryExecuted=32_768,
            sharedMemoryLimitConfig=0,
        )

    def _memory(self, memory: Columns) -> None:
        is_copy = np.array([kind.copy_kind is not None for kind in MEMORY_KINDS])[memory["kind"]]
        copies = {key: column[is_copy] for key, column in memory.items()}
        kinds = {
            column: np.array([getattr(kind, key) or 0 for kind in MEMORY_KINDS])[copies["kind"]]
            for column, key in (("copyKind", "copy_kind"), ("srcKind", "source"), ("dstKind", "target"))
        }
        rank = copies["rank"]
        is_peer = kinds["copyKind"] == 10
        peers = {
            "srcDeviceId": np.where(is_peer, rank, None),
            "dstDeviceId": np.where(is_peer, (rank + 1) % self.devices, None),
            "srcContextId": np.where(is_peer, np.ones_like(rank), None),
            "dstContextId": np.where(is_peer, np.ones_like(rank), None),
        }
        on_device = self._on_device(copies)
        self.append("CUPTI_ACTIVITY_KIND_MEMCPY", len(rank), **on_device, **kinds, **peers, bytes=copies["bytes"])
        fills = {key: column[~is_copy] for key, column in memory.items()}
        on_device = self._on_device(fills)
        rows = len(fills["start"])
        self.append("CUPTI_ACTIVITY_KIND_MEMSET", rows, **on_device, bytes=fills["bytes"], value=0, memKind=2)

    def _ranges(self, ranges: Columns) -> None:
        """Ranges; some bear their name themselves, some by number, as with registered strings."""
        registered = ranges["name"] >= OPTIMIZER
        self.append(
            "NVTX_EVENTS",
            len(registered),
            start=ranges["start"],
            end=ranges["end"],
            eventType=PUSH_POP_RANGE,
            text=np.array([None if n >= OPTIMIZER else text for n, text in enumerate(RANGES)])[ranges["name"]],
            textId=np.where(registered, self.ids(list(RANGES))[ranges["name"]], None),
            globalTid=global_tid(ranges["rank"], ranges["thread"]),
            domainId=np.where(ranges["name"] > OPTIMIZER, NCCL_DOMAIN, 0),
        )

    def finish(self, parameters: dict[str, int], begin: int, stop: int) -> None:
        """Add all that is not activity, and the ranks' marks at `begin`; close the database."""
        devices = self.devices
        major, minor, micro = SCHEMA_VERSION.split(".")
        meta = {
            "EXPORT_PRODUCT_NAME": "NVIDIA Nsight Systems",
            "EXPORT_PRODUCT_VERSION": PRODUCT_VERSION,
            "EXPORT_SCHEMA_VERSION": SCHEMA_VERSION,
            "EXPORT_SCHEMA_VERSION_MAJOR": major,
            "EXPORT_SCHEMA_VERSION_MINOR": minor,
            "EXPORT_SCHEMA_VERSION_MICRO": micro,
            "SYNTHETIC": "true",
            "SYNTHETIC_PARAMETERS": json.dumps(parameters),
        }
        self.append("META_DATA_EXPORT", len(meta), name=list(meta), value=list(meta.values()))
        for table, rows in ENUMERATIONS.items():
            number, name, label = (list(column) for column in zip(*rows, strict=True))
            self.append(table, len(rows), id=number, name=name, label=label)
        self.append("StringIds", len(self.strings), id=list(self.strings.values()), value=list(self.strings))

        rank = np.arange(devices)
        pid = FIRST_PID + rank
        self.append("PROCESSES", devices, globalPid=global_pid(rank), pid=pid, name="python3 (synthetic)")
        for thread, name in enumerate(THREADS):
            tid = global_tid(rank, thread)
            self.append("ThreadNames", devices, nameId=self.strings[name], priority=20, globalTid=tid)
        self.append(
            "TARGET_INFO_GPU", devices, vmId=MACHINE, id=rank, name="Synthetic GPU", isDiscrete=1,
            busLocation=[f"0000:{number + 1:02x}:00.0" for number in rank], totalMemory=80 << 30, smCount=132,
            clockRate=1_980_000_000, memoryBandwidth=3_352_320_000_000, cuDevice=rank, pwGpuId=rank,
            uuid=[f"00000000-0000-0000-0000-{number:012x}" for number in rank], chipName="synthetic",
            computeMajor=9, computeMinor=0, smMajor=9, smMinor=0,
        )  # fmt: skip
        for stream, flag, priority in ((COMPUTE_STREAM, 3, 0), (COPY_STREAM, 2, 0), (COLLECTIVE_STREAM, 2, 2**32 - 5)):
            of_stream = {"streamId": stream, "flag": flag, "priority": priority}
            self.append("TARGET_INFO_CUDA_STREAM", devices, **of_stream, hwId=0, vmId=1, processId=pid, contextId=1)
        began = "2023-11-14T22:13:20"
        self.append("TARGET_INFO_SESSION_START_TIME", 1, utcEpochNs=SESSION_START_NS, utcTime=began, localTime=began)
        self.append("ANALYSIS_DETAILS", 1, globalVid=MACHINE, duration=stop, startTime=0, stopTime=stop)
        on_main = {"globalTid": global_tid(rank), "start": begin + rank * 1000}
        marks = [f"rank:{number}" for number in rank]
        self.append("NVTX_EVENTS", devices, **on_main, eventType=DOMAIN_CREATE, text="NCCL", domainId=NCCL_DOMAIN)
        self.append("NVTX_EVENTS", devices, **on_main, eventType=MARK, text=marks, domainId=0)
        self.cursor.close()
        self.connection.close()


def together(parts: dict[int, Columns]) -> Columns:
    """Columns of several ranks below each other, with a column `rank`."""
    first = next(iter(parts.values()))
    merged = {key: np.concatenate([columns[key] for columns in parts.values()]) for key in first}
    return merged | {"rank": np.repeat(list(parts), [len(columns["start"]) for columns in parts.values()])}
