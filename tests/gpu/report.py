"""What a part found: each case that fails is recorded, and the next one runs."""

import contextlib
import json
import traceback


class Report:
    """Figures and failures of a part; they are printed after each case, so that a part which is
    ended at its deadline, or by its device, leaves what it had."""

    def __init__(self, shown=True):
        """``shown``: not on other ranks than the first, which says what all have found."""
        self.figures, self.failures, self._shown = {}, [], shown

    @contextlib.contextmanager
    def case(self, name):
        """Around a case that has to pass; what it raises is a failure."""
        try:
            yield
        except Exception as error:
            traceback.print_exc()
            self.failures.append(f"{name}: {in_words(error)}")
        self.show()

    @contextlib.contextmanager
    def optional(self, name):
        """Around what need not be possible here; what it raises is a figure of that name."""
        try:
            yield
        except Exception as error:
            traceback.print_exc()
            self.figures[name] = f"none: {in_words(error)}"
        self.show()

    def expect(self, truth, text):
        """``text``: what is wrong where it is not true."""
        if not truth:
            self.failures.append(text)

    def show(self):
        if self._shown:
            print(json.dumps({"figures": self.figures, "failures": self.failures}), flush=True)


def in_words(error):
    """The first line of an error, not too long for a table."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:200]}"
