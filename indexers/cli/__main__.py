"""`python -m indexers.cli`: the command, without the script that pip installs."""

from indexers.cli import main

if __name__ == "__main__":
    main()
