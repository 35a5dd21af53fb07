"""What one run measured, whether to believe it, and where its steps go."""
