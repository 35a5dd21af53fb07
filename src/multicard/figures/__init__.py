"""Draw figures of the numbers that `multicard.answers` computes."""
