"""What more devices gain, measured and predicted."""
