"""Imported last by a process that forks others: what it has imported by then is no garbage.

Each of them would look for some there, twice as it ends, and copy the memory meanwhile: a second with PyTorch.
"""

import gc

gc.collect()
gc.freeze()
