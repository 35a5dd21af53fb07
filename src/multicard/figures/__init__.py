"""Draw figures of the numbers that `multicard.analysis` computes."""
