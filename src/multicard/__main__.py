"""`python -m multicard` is the console command."""

from multicard.cli import main

main()
