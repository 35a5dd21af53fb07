"""Names of the host's work in steps that no phase shows, as the observer records it and records keep it."""

# Kinds of work.
GARBAGE, SAVING, COLLECTIVE = "garbage collection", "saving", "collective"
COMPILING, STARTING = "compiling", "starting workers"
STOPPING, SAMPLING = "stopping workers", "sampling"
KINDS = (GARBAGE, SAVING, COLLECTIVE, COMPILING, STARTING, STOPPING, SAMPLING)
# Name of the function for garbage that Python collects by itself, and of the functions that are watched.
AUTOMATIC, COLLECT, SAVE, COMPILE = "automatic", "gc.collect", "torch.save", "torch.compile"
LOADER = "DataLoader"  # whose iterator starts and stops its workers
SAMPLER = "sampler"  # which a loader asks for the indices of the next batch
# Functions of torch.distributed that exchange something between all ranks of a group.
COLLECTIVES = (
    "all_reduce", "all_reduce_coalesced", "all_gather", "all_gather_into_tensor", "all_gather_object", "all_to_all",
    "all_to_all_single", "barrier", "broadcast", "broadcast_object_list", "gather", "gather_object",
    "monitored_barrier", "reduce", "reduce_scatter", "reduce_scatter_tensor", "scatter", "scatter_object_list",
)  # fmt: skip
FUNCTIONS = (AUTOMATIC, COLLECT, SAVE, COMPILE, LOADER, SAMPLER, *COLLECTIVES)
