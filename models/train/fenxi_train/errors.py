"""The one way in which a command ends because of its input: a line and an exit code of sysexits.h."""

USAGE, DATA, NO_INPUT, SOFTWARE, CANNOT_CREATE = 64, 65, 66, 70, 73


class Refusal(Exception):
    """What is wrong, where, and the cure, in one line."""

    def __init__(self, text, code=DATA):
        super().__init__(text)
        self.code = code


def in_line(path, line, text):
    """A refusal of one line of a file."""
    return Refusal(f"{path}: line {line}: {text}")
