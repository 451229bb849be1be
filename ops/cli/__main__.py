"""`python -m ops.cli`: the command, without the script that pip installs."""

from ops.cli import main

if __name__ == "__main__":
    main()
