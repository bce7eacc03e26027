"""Cases of the equality suite, deterministic and in whole float32; they are the arguments."""

import sys
from pathlib import Path

import device

sys.path.append(str(Path(__file__).resolve().parents[2] / "support" / "jobs"))
import equality

if __name__ == "__main__":
    device.make_deterministic()
    equality.main(sys.argv[1:])
