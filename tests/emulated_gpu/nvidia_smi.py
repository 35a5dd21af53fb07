"""nvidia-smi of the emulated GPUs: the list (-L), queries (--query-gpu=…) and the head of the table.

Settings, with NVIDIA_EMU_ before each: GPUS, GPU_GIB, GPU_NAME, DRIVER and MIG as for the libraries; SMI_GPUS, if
nvidia-smi is to list another number of GPUs than CUDA sees; SMI=fails, as with a driver that does not fit its library;
SMI=hangs; with SMI=missing there is none on the PATH.
"""

import os
import sys
import time


def setting(name, otherwise):
    """One of NVIDIA_EMU_*."""
    return os.environ.get(f"NVIDIA_EMU_{name}") or otherwise


def uuid(gpu, instance=None):
    """As emulation.h makes it."""
    numbers = [0xE0 + place for place in range(16)]
    numbers[14], numbers[15] = 0 if instance is None else 0x10 + instance, gpu
    digits = "".join(f"{number:02x}" for number in numbers)
    parts = digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]
    return ("GPU-" if instance is None else "MIG-") + "-".join(parts)


def gibibytes(gpu):
    """Memory of a GPU; the last number stands for all others."""
    numbers = setting("GPU_GIB", "16").split(",")
    return float(numbers[min(gpu, len(numbers) - 1)])


def main():
    """Answer as nvidia-smi does."""
    if setting("SMI", "") == "fails":
        print("Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.65")
        sys.exit(18)
    if setting("SMI", "") == "hangs":
        time.sleep(3600)
    gpus = min(int(setting("SMI_GPUS", setting("GPUS", "4"))), 16)
    if gpus == 0:
        print("No devices were found")
        sys.exit(6)
    name, driver = setting("GPU_NAME", "Emulated GPU (synthetic)"), setting("DRIVER", "580.65.06")
    partitioned = setting("MIG", "0") == "1"
    query = next((argument.partition("=")[2] for argument in sys.argv if argument.startswith("--query-gpu=")), None)
    nounits = any("nounits" in argument for argument in sys.argv)

    def value(field, gpu):
        numbers = {
            "memory.total": (f"{gibibytes(gpu) * 1024:.0f}", "MiB"),
            "memory.used": ("1", "MiB"),
            "clocks.sm": ("1410", "MHz"),
            "clocks.max.sm": ("1410", "MHz"),
            "clocks.mem": ("1215", "MHz"),
            "clocks.max.mem": ("1215", "MHz"),
            "temperature.gpu": ("40", ""),
            "power.draw": ("100.00", "W"),
            "power.limit": ("400.00", "W"),
            "ecc.errors.uncorrected.volatile.total": ("0", ""),
            "ecc.errors.corrected.volatile.total": ("0", ""),
        }
        texts = {
            "index": str(gpu),
            "name": name,
            "uuid": uuid(gpu),
            "gpu_uuid": uuid(gpu),
            "driver_version": driver,
            "count": str(gpus),
            "pci.bus_id": f"00000000:{0x10 + gpu:02X}:00.0",
            "mig.mode.current": "Enabled" if partitioned else "Disabled",
            "ecc.mode.current": "Enabled",
        }
        if field in numbers:
            number, unit = numbers[field]
            return number if nounits or not unit else f"{number} {unit}"
        return texts.get(field, "[N/A]")

    if "-L" in sys.argv or "--list-gpus" in sys.argv:
        for gpu in range(gpus):
            print(f"GPU {gpu}: {name} (UUID: {uuid(gpu)})")
            for instance in range(2 if partitioned else 0):
                print(f"  MIG 3g.20gb     Device  {instance}: (UUID: {uuid(gpu, instance)})")
    elif query:
        if not any("noheader" in argument for argument in sys.argv):
            print(query.replace(",", ", "))
        for gpu in range(gpus):
            print(", ".join(value(field.strip(), gpu) for field in query.split(",")))
    else:
        print(f"| NVIDIA-SMI {driver}    Driver Version: {driver}   CUDA Version: 13.0 |")


main()
