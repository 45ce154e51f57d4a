"""The one way in which a command ends because of its input: a line and an exit code of sysexits.h."""

import argparse
import sys

USAGE, DATA, NO_INPUT, UNAVAILABLE, SOFTWARE, CANNOT_CREATE = 64, 65, 66, 69, 70, 73


class Refusal(Exception):
    """What is wrong, where, and the cure, in one line."""

    def __init__(self, text, code=DATA):
        super().__init__(text)
        self.code = code


def in_line(path, line, text):
    """A refusal of one line of a file."""
    return Refusal(f"{path}: line {line}: {text}")


class Parser(argparse.ArgumentParser):
    """argparse that ends with the code of sysexits.h."""

    def error(self, message):
        program = self.prog.split()[0]
        print(f"{program}: {message}; {program} --help lists the options", file=sys.stderr)
        sys.exit(USAGE)


def positive(text):
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number above 0")
    return value
