"""`python -m trainers.cli`: the command, without the script that pip installs."""

from trainers.cli import main

if __name__ == "__main__":
    main()
