"""The claims of two papers, and tests that check them against measurements."""
