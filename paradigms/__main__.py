"""`python -m paradigms`."""

import sys

if __name__ == "__main__":
    try:
        from paradigms.cli import main
    except KeyboardInterrupt:  # imports take a second or two
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    sys.exit(main())
