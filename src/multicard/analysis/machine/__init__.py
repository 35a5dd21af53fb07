"""The limits of a machine, recorded by `multicard doctor --measure`, and the utilization of the machine by runs."""
