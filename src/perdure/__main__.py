"""`python -m perdure` is `perdure`."""

from .cli import main

main()
