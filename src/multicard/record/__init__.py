"""Inside a training process: times, memory, energy, CPU binding and the profiled window.

Needs torch and the standard library only, so that any training program can use it.
"""
