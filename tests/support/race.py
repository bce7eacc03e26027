"""Two threads write one object of ours, which it forbids: a thread sanitizer that works says so."""

import threading

from pyrannc import _C


def main():
    kept, both = _C.runtime.KeptGradients(), threading.Barrier(2)

    def work():
        for _ in range(1000):
            both.wait()  # else one may be through with all before the other begins
            kept.drop()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
