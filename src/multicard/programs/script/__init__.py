"""A user's own training script, unchanged: started by a launcher, observed from inside its processes."""
