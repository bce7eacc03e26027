"""Files that are there as a whole, whoever else writes them."""

import concurrent.futures

from pyrannc import files


# Processes of two containers may have one number, as threads do: they wrote into each other's
# files, and one renamed the other's away.
def test_writers_of_one_number_write_whole_files(tmp_path):
    path, texts = tmp_path / "costs.json", ["a" * 100_000, "b" * 10]

    def write(text):
        for _ in range(100):
            files.write_whole(path, text)
            assert path.read_text() in texts

    with concurrent.futures.ThreadPoolExecutor() as pool:
        assert list(pool.map(write, texts)) == [None, None]
    assert list(tmp_path.iterdir()) == [path]
