"""`python -m yamchi` is `yamchi`."""

from yamchi.cli import main

if __name__ == "__main__":
    main()
