"""Code that runs inside a training process: it times steps, reads memory, binds CPUs and opens the profiled window.

It needs only torch and the standard library, because it must run in the environment of any training program.
"""
