"""Starting a job: command lines of torchrun and nsys, and what became of the process."""
