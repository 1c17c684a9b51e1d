"""The command line as a module: python -m anchored COMMAND --help"""

from .tools.cli import main

if __name__ == "__main__":
    main()
