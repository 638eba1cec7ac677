"""`python -m paradigms`."""

import sys

from paradigms.cli import main

if __name__ == "__main__":
    sys.exit(main())
