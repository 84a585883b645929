"""`python -m relive.cli` does the same as `relive`."""

from relive.cli.entry import main

if __name__ == "__main__":
    main()
