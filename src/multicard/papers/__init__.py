"""The claims of two papers, and their tests."""
