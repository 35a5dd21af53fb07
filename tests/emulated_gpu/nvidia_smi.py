"""nvidia-smi of the emulated GPUs: the list (-L), and their memory (--query-gpu=memory.total).

Settings as for the libraries, with NVIDIA_EMU_ before each: GPUS, GPU_GIB, GPU_NAME and MIG.
"""

import os
import sys


def setting(name, otherwise):
    return os.environ.get(f"NVIDIA_EMU_{name}") or otherwise


def uuid(gpu, instance=None):
    """As emulation.h makes it."""
    numbers = [0xE0 + place for place in range(16)]
    numbers[14], numbers[15] = 0 if instance is None else 0x10 + instance, gpu
    digits = "".join(f"{number:02x}" for number in numbers)
    parts = digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]
    return ("GPU-" if instance is None else "MIG-") + "-".join(parts)


def main():
    gpus = min(int(setting("GPUS", "4")), 16)
    if gpus == 0:
        print("No devices were found")
        sys.exit(6)
    sizes = setting("GPU_GIB", "16").split(",")  # the last one stands for all others
    for gpu in range(gpus):
        if "-L" in sys.argv:
            print(f"GPU {gpu}: {setting('GPU_NAME', 'Emulated GPU (synthetic)')} (UUID: {uuid(gpu)})")
            for instance in range(2 if setting("MIG", "0") == "1" else 0):
                print(f"  MIG 3g.20gb     Device  {instance}: (UUID: {uuid(gpu, instance)})")
        else:
            print(f"{float(sizes[min(gpu, len(sizes) - 1)]) * 1024:.0f}")


main()
